"""The machinery of the course: one code for all phases and labs; what differs between them is data.

| Where | What |
|---|---|
| `cli.py`, `verify.py` | the command `course`; everything that has to be true of the course, check by check |
| `labs.py`, `pytest_plugin.py`, `fixtures.py` | where the labs are and how their code is loaded; what their tests get |
| `captures.py` | for the phases' scripts: captured runs (pictures: `mini_vllm/utils/svg.py`) |
| `loop/` | the learner's loop: where she is, next, watch, hint, diff, reset, update |
| `failures/` | a red lab test, told to her |
| `workspace/` | `course build`: the copy of the engine that she completes |
| `plugs/` | her code in the engine, the guards around it, the milestone |
| `grade/` | a class of submissions, behind walls |
| `contract/` | checks of labs: starter and solution in step, listed mistakes, mutants |
| `pages/` | checks of pages: shape, links, citations, executed blocks, glossary, captures |
| `upstream/` | the pinned release: fetched, read, compared with another, built for a CPU |

Data: `labs.toml` (a row a lab), `build.toml` (a mini-build a phase), `plugs.toml` (labs in the engine), `mistakes/`
(what tests must catch), `equivalent.toml` (what no test can), `syscalls.toml`, `language.toml` (what labs may say)."""
