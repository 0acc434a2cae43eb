// Runs the playgrounds' modules without a page: jobs come as JSON on stdin, results go to stdout in their order.
// {module, call, args}: what an exported function returns. {name}: id, answer and options of each question, and whether
// its explanation is text. Numbers that JSON does not know are written as words.
import { readFileSync } from "node:fs";

const folder = process.argv[2];
const load = (name) => import(`${folder}/${name}.js`);
const results = [];
for (const job of JSON.parse(readFileSync(0, "utf8"))) {
  if (job.call) {
    results.push((await load(job.module))[job.call](...job.args));
    continue;
  }
  const { questions } = await load(job.name);
  results.push(questions(job.data).map(({ id, ask, answer, options, number, why }) => {
    const words = typeof options === "function" ? options() : options;
    return { id, ask, answer: answer(), options: words ?? null, number: number ?? null, why: why(answer()) };
  }));
}
const plain = (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : ArrayBuffer.isView(value) ? [...value] : value);
process.stdout.write(JSON.stringify(results, plain));
