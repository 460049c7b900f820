import pytest

from tests.task_layer.toy import VectorTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import SeparatedAnswers, StopRule
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.task import PromptRow

STYLES = [SingleAnswer(), MultiAnswer(1), MultiAnswer(4), GoalConditioned()]


@pytest.mark.parametrize("style", STYLES)
def test_a_style_reads_what_it_renders(style: PromptStyle):
    for task in (VectorTask(), VectorTask(SeparatedAnswers())):
        answers = [f"[{i}, 1]" for i in range(style.num_answers)]
        assert style.parse(task, style.render(task, answers)) == answers


@pytest.mark.parametrize("style", STYLES)
def test_every_style_puts_the_question_before_its_instruction(style: PromptStyle):
    task = VectorTask()
    (row,) = task.rows("train")
    (message,) = style.messages(task, row, [0.75, 0.25])
    assert message["role"] == "user"
    assert message["content"].startswith("Which vector? ")
    assert message["content"].endswith(style.ask(task, row, [0.75, 0.25]))


def test_a_question_of_several_lines_is_set_off_by_a_blank_line():
    task = VectorTask()
    row = PromptRow("a", "Which\nvector?", {}, task.objectives)
    (message,) = SingleAnswer().messages(task, row)
    assert message["content"].startswith("Which\nvector?\n\nAnswer")


def test_the_system_message_of_the_row_comes_before_the_tasks():
    task = VectorTask()
    task.system_prompt = "of the task"
    (row,) = task.rows("train")
    own = PromptRow("a", "Which?", {}, task.objectives, system_prompt="of the row")
    assert SingleAnswer().messages(task, row)[0] == {"role": "system", "content": "of the task"}
    assert SingleAnswer().messages(task, own)[0] == {"role": "system", "content": "of the row"}
    assert [m["role"] for m in SingleAnswer().messages(task, own)] == ["system", "user"]


def test_m_answers_are_asked_for_and_end_at_the_last_one():
    task = VectorTask()
    (row,) = task.rows("train")
    style = MultiAnswer(2)
    assert style.num_answers == 2
    assert "<response_2>" in style.ask(task, row, None)
    assert style.stop_rule(task) == StopRule("</response_2>")
    assert MultiAnswer(3).stop_rule(VectorTask(SeparatedAnswers())) == StopRule("|", 3)
    assert SingleAnswer().stop_rule(VectorTask(SeparatedAnswers())) == StopRule("|")


def test_priorities_are_stated_by_what_they_mean():
    task = VectorTask()
    (row,) = task.rows("train")
    (message,) = GoalConditioned().messages(task, row, [0.75, 0.25])
    assert "much x 75%, much y 25%" in message["content"]
    assert GoalConditioned().shows_weights
    assert not any(style.shows_weights for style in (SingleAnswer(), MultiAnswer(3)))


@pytest.mark.parametrize("weights", [None, [1.0], [0.2, 0.3, 0.5]])
def test_priorities_that_do_not_fit_the_row_are_refused(weights):
    task = VectorTask()
    (row,) = task.rows("train")
    with pytest.raises(ValueError, match="one weight for each of the 2 objectives of train-1"):
        GoalConditioned().messages(task, row, weights)


@pytest.mark.parametrize("m", [0, -1])
def test_a_chain_of_no_answers_is_refused(m):
    with pytest.raises(ConfigError, match=rf"m={m}: .*set m to 1 or more"):
        MultiAnswer(m)


def test_a_single_style_renders_exactly_one_answer():
    with pytest.raises(ValueError, match="too many values"):
        SingleAnswer().render(VectorTask(), ["[1, 0]", "[0, 1]"])
