"""The tables that tasks draw of a chain for the report."""

from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.livecodebench.picture import passing_table
from vpo_lightning.tasks.livecodebench.task import LiveCodeBenchTask
from vpo_lightning.tasks.musique.picture import citation_table
from vpo_lightning.tasks.musique.task import OBJECTIVES


def test_the_table_of_programs_counts_the_tests_passed_by_each_and_by_any():
    objectives = LiveCodeBenchTask.objectives[:3]
    row = PromptRow("p", "Add.", {"inputs": ["1 <2>", "x" * 100, "3"]}, objectives)
    markup = passing_table(row, ["a", "b"], [[1, 0, 0], [0, 1, 0]]).to_markup()
    assert markup.count('<td class="good">✓ passed</td>') == 4  # two, and twice by any
    assert "<td>1 of 3</td><td>1 of 3</td><td>2 of 3</td>" in markup
    assert "<code>1 &lt;2&gt;</code>" in markup
    assert f"<code>{'x' * 80}…</code>" in markup


def test_the_table_of_citations_shows_needed_and_cited_paragraphs():
    prompt = "Paragraphs:\n[0] First: one.\n[1] Second: two.\n[2] Third: <b>.\n\nQuestion: ?"
    truth = {"answer": "yes", "supporting_indices_ordered": [1, 0]}
    row = PromptRow("q", prompt, truth, OBJECTIVES)
    answers = ["<support>1, 2, 9</support><answer>yes</answer>", "nothing"]
    markup = citation_table(row, answers).to_markup()
    rows = [line for line in markup.split("<tr") if 'scope="row"' in line]
    assert ["hop 1" in rows[0], "hop 2" in rows[1], "Third: &lt;b&gt;." in rows[2]] == [True] * 3
    assert "✓ cited" in rows[0]
    assert "✓ cited" not in rows[1]
    assert "✗ cited" in rows[2]
    assert "[9] not there" in rows[3]
    assert "<td>yes</td><td>(no answer)</td>" in rows[4]
