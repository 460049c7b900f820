"""How routes are delimited in the completion of a language model."""

from __future__ import annotations

from dataclasses import dataclass

from vpo_lightning.parsing import NumberedTags, StopRule, first_body, numbered_tags, tag_bodies


@dataclass(frozen=True)
class RouteTags(NumberedTags):
    """One route in ``<answer>..</answer>``; several in ``<route_1>..</route_1>`` and so on.

    Without an answer tag the whole text is the route. Without numbered tags, several routes are the
    parts between ``---``, or else the bodies of the answer tags, or else the whole text is one. An
    answer tag inside a route holds that route. Answer tags may be in any case, numbered tags not.
    """

    tag: str = "route"
    example: str = "DOWN RIGHT ..."

    def parse_single(self, text: str) -> str | None:
        """The body of the first answer tag, or the whole text."""
        return _body(text)

    def parse_multiple(self, text: str, m: int) -> list[str | None]:
        """The routes by slot: exactly m entries, None where a slot is missing."""
        routes = numbered_tags(text, m, self.tag)
        if all(route is None for route in routes):
            routes = [*_untagged_routes(text)[:m]]
            routes += [None] * (m - len(routes))
        return [route if route is None else _body(route) for route in routes]

    def ask_single(self) -> str:
        """The sentence in a prompt that asks for one route."""
        return f"Answer with your moves in this form:\n<answer>{self.example}</answer>"

    def ask_multiple(self, m: int) -> str:
        """The sentence in a prompt that asks for m different routes."""
        shown = "\n".join(
            f"<{self.tag}_{i}>{self.example}</{self.tag}_{i}>" for i in range(1, m + 1)
        )
        return (
            f"Give {m} different routes, each of which could be the best one under other "
            f"priorities, in this form:\n{shown}"
        )

    def render_single(self, answer: str) -> str:
        """The route in its tag, as a model should write it."""
        return f"<answer>{answer}</answer>"

    def stop_single(self) -> StopRule | None:
        """The closing answer tag."""
        return StopRule("</answer>")


def _body(text: str) -> str:
    """What the first answer tag holds, or the whole text."""
    body = first_body(text, "answer", ignore_case=True)
    return (text if body is None else body).strip()


def _untagged_routes(text: str) -> list[str]:
    parts = [part for part in text.split("---") if part.strip()]
    return parts if len(parts) > 1 else [*tag_bodies(text, "answer", ignore_case=True)] or [text]
