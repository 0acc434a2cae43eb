// pocket's chat template for system, user and assistant turns, as its tokenizer_config.json has it in Jinja; the tests
// compare the two. Twin: mini_vllm/entrypoints/chat_template.py, which runs the Jinja itself.

/** @typedef {{role: "system" | "user" | "assistant", content: string}} Message */

/** What Python calls white space. */
const EDGES = /^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu;

/** The text of a conversation, ready for the assistant's answer. @param {Message[]} messages */
export function apply_chat_template(messages) {
  const turns = messages.map(({ role, content }) => `<|${role}|>\n${content.replace(EDGES, "")}<|end|>\n`);
  return `<|bos|>${turns.join("")}<|assistant|>\n`;
}
