"""ReFusion decoding of one sequence: plan, verify, refine, commit (arXiv 2512.13586, docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import refusion_ext

from ..cache import Retain
from .config import DecodeConfig
from .drafts import Draft, Plan, Slot, row_offsets
from .result import Answer, Stats
from .work import PREFILL_TOKENS, Cost, Forward, Score, Scores, Steps


class SlotDecoder:
    """Decodes one sequence; `run` yields forwards and receives their scores.

    Forwards are bounded: every round removes at least one slot, and takes at most one plan, one verify and
    slot_size - 1 refinements of two forwards.

    `read_once`: score every mask of a plan in the call that plans, instead of the first of each slot and then the rest
    of the chosen ones. More rows of the LM head, but a forward is read back once; the tokens are the same.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        config: DecodeConfig,
        mask_token_id: int,
        eos_token_ids: frozenset[int],
        cost: Cost,
        read_once: bool = False,
    ) -> None:
        self.config = config
        self.rule = config.slot_score if config.slot_score in ("mean", "minimum") else "first"
        self.scores_all = read_once or self.rule != "first"
        self.mask = mask_token_id
        self.cost = cost
        self.prompt = list(prompt)
        self.answer = Answer(config.answer_length, eos_token_ids)
        self.stats = Stats(prompt_tokens=len(prompt))
        self.strict = config.semantics == "strict"
        self.capacity = len(self.prompt) + config.answer_length + 2 * config.block_length
        self.committed = 0  # cache rows
        self.row_positions: list[int] = []  # answer position of each committed row behind the prompt
        self.retain = Retain(0, [], 0)  # what of the last forward stays
        self.remaining: list[Slot] = []  # R: slots of the present outer block that are not written
        self.ended = False  # EOS was committed
        self.round = 0
        self.ahead: Plan | None = None
        self.verified, self.verified_whole = 1, 1  # verifies so far, and those in which all drafts were accepted

    def run(self) -> Steps[None]:
        unread = yield from self._prefill()
        for begin in range(0, self.config.answer_length, self.config.block_length):
            if self.ended:
                break
            self.remaining = self._slots(begin)
            while self.remaining:
                drafts = yield from self._plan(unread)
                unread = []
                yield from self._verify(drafts)

    # ---- the phases

    def _prefill(self) -> Steps[list[int]]:
        """Reads all but the last part of a long prompt; returns what is left for the first plan."""
        unread = self.prompt
        while len(unread) > PREFILL_TOKENS:
            part, unread = unread[:PREFILL_TOKENS], unread[PREFILL_TOKENS:]
            positions = list(range(self.committed, self.committed + len(part)))
            yield Forward("prefill", part, positions, self.retain, Score([], []))
            self._commit_prompt(len(part))
        return unread

    def _plan(self, unread: list[int]) -> Steps[list[Draft]]:
        """Drafts the slots that are safe to write now."""
        plan, self.ahead = self.ahead, None
        if plan is None:
            tokens, positions, score = self._masks(self.remaining, len(unread))
            read = list(range(self.committed, self.committed + len(unread)))
            scores = yield Forward("plan", unread + tokens, read + positions, self.retain, score)
            self._commit_prompt(len(unread))
            plan = Plan(self.remaining, len(unread), scores, self.round)
        self.round += 1
        chosen = self._select(plan)

        drafts, offset = [], 0
        rest = Score([], [], round=plan.round)
        for index, slot in enumerate(plan.slots):
            if index in chosen:
                at = offset if self.scores_all else index
                count = slot.length if self.scores_all else 1
                first = slice(at, at + count)
                drafts.append(Draft(slot, plan.scores.token[first].tolist(), plan.scores.probability[first].tolist()))
                if not self.scores_all:
                    rest.rows.extend(range(plan.row + offset + 1, plan.row + offset + slot.length))
                    rest.positions.extend(range(slot.start + 1, slot.start + slot.length))
            offset += slot.length
        if rest.rows:
            more = (yield rest).token.tolist()
            for draft in drafts:
                taken, more = more[: draft.slot.length - 1], more[draft.slot.length - 1 :]
                draft.tokens += taken
                draft.probabilities += [0.0] * len(taken)  # until verified
        return drafts

    def _verify(self, drafts: list[Draft]) -> Steps[None]:
        """Checks the drafts in one causal forward; commits the whole slots, or refines when there are none."""
        tokens, positions, score = self._given(drafts)
        given = len(score.rows)
        next_slots = self._slots_to_plan_ahead(drafts)
        if next_slots:
            masks, mask_positions, mask_score = self._masks(next_slots, len(tokens))
            score = Score(
                score.rows + mask_score.rows,
                score.positions + mask_score.positions,
                (score.given or []) + [-1] * len(mask_score.rows),
                self.round,
            )
        else:
            masks, mask_positions = [], []
        scores = yield Forward("verify", tokens + masks, positions + mask_positions, self.retain, score)
        run, eos = self._accept(drafts, scores.probability[:given])
        whole, length = 0, 0
        for draft, end in zip(drafts, eos, strict=True):
            if 0 <= end < run - length:
                draft.truncate(end + 1)
                self._commit_verified(drafts[: whole + 1])
                return
            if len(draft.tokens) > run - length:
                break
            whole, length = whole + 1, length + len(draft.tokens)
        self.verified += 1
        self.verified_whole += whole == len(drafts)
        if whole == 0:
            yield from self._refine(drafts)
            return
        if whole == len(drafts) and next_slots:
            ahead = Scores(*(getattr(scores, name)[given:] for name in Scores.__slots__))
            self.ahead = Plan(next_slots, len(tokens), ahead, self.round)
        self._commit_verified(drafts[:whole])

    def _refine(self, drafts: list[Draft]) -> Steps[None]:
        """Infills the drafted slots in parallel, each blind to the others, until every one is complete."""
        rows: dict[int, list[int]] = {}  # slot start -> provisional rows of its last verify, in order of completion
        chosen, first_round = _starts(drafts), True
        eos_row: int | None = None
        while True:
            eos_row, drafts = self._end_at_eos(drafts, eos_row)
            rows = {start: kept for start, kept in rows.items() if any(d.slot.start == start for d in drafts)}
            active = [d for d in drafts if first_round or not d.complete]
            if not active:
                break
            yield from self._redraft([d for d in active if not d.complete], rows)
            tokens, positions, score = self._given(active)
            held = self._hold(rows)
            begins = [at for at, draft in row_offsets(active) for _ in draft.tokens]
            scores = yield Forward("refine_verify", tokens, positions, self.retain, score, begins)
            self._accept(active, scores.probability)
            for at, draft in row_offsets(active):
                if draft.complete or any(t in self.answer.eos_token_ids for t in draft.tokens[: draft.accepted]):
                    rows[draft.slot.start] = list(range(held + at, held + at + len(draft.tokens)))
            first_round = False
        provisional: list[tuple[int, int]] = []
        for start, kept in rows.items():
            draft = next(d for d in drafts if d.slot.start == start)
            provisional.extend((row, position) for row, position in zip(kept, draft.positions, strict=False))
        provisional.sort()
        self._commit([row for row, _ in provisional], [position for _, position in provisional], drafts)
        self._leave_remaining(chosen, eos_row)

    def _redraft(self, drafts: list[Draft], rows: dict[int, list[int]]) -> Steps[None]:
        """Every token that is not accepted becomes the choice at its own masked position."""
        if not drafts:
            return
        score = Score([], [], round=self._refine_round(drafts))
        tokens, positions, begins = [], [], []
        for at, draft in row_offsets(drafts):
            missing = len(draft.tokens) - draft.accepted
            tokens += draft.tokens[: draft.accepted] + [self.mask] * missing
            positions += [len(self.prompt) + p for p in draft.positions]
            begins += [at] * len(draft.tokens)
            score.rows.extend(range(at + draft.accepted, at + len(draft.tokens)))
            score.positions.extend(draft.positions[draft.accepted :])
        self._hold(rows)
        scores = yield Forward("refine_draft", tokens, positions, self.retain, score, begins)
        fresh = scores.token.tolist()
        for draft in drafts:
            missing = len(draft.tokens) - draft.accepted
            draft.tokens[draft.accepted :], fresh = fresh[:missing], fresh[missing:]

    # ---- choosing and accepting, on the ops

    def _select(self, plan: Plan) -> set[int]:
        name = self.config.slot_score
        scores = plan.scores.probability
        if name == "entropy":
            scores = np.exp(-plan.scores.entropy)
        elif name == "margin":
            scores = plan.scores.margin
        lengths = [slot.length if self.scores_all else 1 for slot in plan.slots]
        selection = refusion_ext.select_slots(
            scores,
            np.cumsum([0, *lengths], dtype=np.int32),
            np.array([0, len(lengths)], np.int32),
            self.config.slot_threshold,
            rule=self.rule,
        )
        return set(selection.chosen[: selection.counts[0]].tolist())

    def _accept(self, drafts: list[Draft], probability: np.ndarray) -> tuple[int, list[int]]:
        """Updates `accepted`; returns the accepted run over all drafts, and each one's accepted EOS or -1."""
        at = 0
        for draft in drafts:
            count = len(draft.tokens) - 1
            draft.probabilities[1:] = probability[at : at + count].tolist()
            at += count
        found = refusion_ext.accept_tokens(
            np.array([p for d in drafts for p in d.probabilities], np.float32),
            np.array([t for d in drafts for t in d.tokens], np.int64),
            np.cumsum([0, *(len(d.tokens) for d in drafts)], dtype=np.int32),
            np.array([d.accepted for d in drafts], np.int32),
            np.array([0, len(drafts)], np.int32),
            self.config.token_threshold,
            eos_token_ids=np.array(sorted(self.answer.eos_token_ids), np.int64),
        )
        for draft, accepted in zip(drafts, found.accepted.tolist(), strict=True):
            draft.accepted = accepted
        return int(found.run[0]), found.eos.tolist()

    def _end_at_eos(self, drafts: list[Draft], before: int | None) -> tuple[int | None, list[Draft]]:
        """Cuts the first draft with an accepted EOS behind it and discards the drafts that follow."""
        for index, draft in enumerate(drafts):
            for length, token in enumerate(draft.tokens[: draft.accepted], 1):
                if token in self.answer.eos_token_ids:
                    draft.truncate(length)
                    return index, drafts[: index + 1]
        return before, drafts

    # ---- committing

    def _commit_prompt(self, rows: int) -> None:
        first = self.committed
        self.committed += rows
        self.retain = Retain(first, list(range(first, self.committed)), self.committed)

    def _commit_verified(self, drafts: list[Draft]) -> None:
        positions = [p for draft in drafts for p in draft.positions]
        self._commit(list(range(len(positions))), positions, drafts)
        written = _starts(drafts)
        end = self.answer.end
        if self.ended and not self.strict:
            end = drafts[-1].slot.start if self._ends(drafts[-1]) else end
        self.remaining = [slot for slot in self.remaining if slot.start not in written and slot.start < end]

    def _commit(self, provisional: list[int], row_positions: list[int], drafts: list[Draft]) -> None:
        """Writes the drafts' tokens and commits their provisional rows; in strict mode EOS withdraws what follows."""
        rows = [self.committed + row for row in provisional]
        first = self.committed
        self.row_positions += row_positions
        for draft in drafts:
            self.answer.write(draft.positions, draft.tokens, draft.probabilities)
        ends = [draft.positions[-1] + 1 for draft in drafts if self._ends(draft)]
        if ends:
            self.ended = True
        if ends and self.strict and ends[0] < self.answer.end:
            self.answer.cut(ends[0])
            first = len(self.prompt)
            rows = [first + i for i in range(self.committed - first)] + rows
            kept = [i for i, position in enumerate(self.row_positions) if position < ends[0]]
            rows, self.row_positions = [rows[i] for i in kept], [self.row_positions[i] for i in kept]
        self.committed = first + len(rows)
        self.retain = Retain(first, rows, self.committed)

    def _ends(self, draft: Draft) -> bool:
        return draft.tokens[-1] in self.answer.eos_token_ids

    def _leave_remaining(self, chosen: set[int], eos_row: int | None) -> None:
        kept = []
        for index, slot in enumerate(self.remaining):
            # The reference compares an index within R with an index within the chosen slots: a slip that it keeps.
            beyond = slot.start >= self.answer.end if self.strict else eos_row is not None and index >= eos_row
            if slot.start not in chosen and not beyond:
                kept.append(slot)
        self.remaining = kept

    def _hold(self, rows: dict[int, list[int]]) -> int:
        """Keeps complete refine rows provisional, packed in front; returns how many there are."""
        order = sorted(row for kept in rows.values() for row in kept)
        self.retain = Retain(self.committed, [self.committed + row for row in order], self.committed)
        place = {row: i for i, row in enumerate(order)}
        for start, kept in rows.items():
            rows[start] = [place[row] for row in kept]
        return len(order)

    # ---- building chunks

    def _slots(self, begin: int) -> list[Slot]:
        """Slots of the outer block that starts at `begin`; the last one may be short."""
        k, end = self.config.slot_size, min(begin + self.config.block_length, self.config.answer_length)
        return [Slot(start, min(k, end - start)) for start in range(begin, end, k)]

    def _masks(self, slots: list[Slot], row: int) -> tuple[list[int], list[int], Score]:
        """Tokens, positions and plan scores of masked slots whose first token is row `row` of a chunk."""
        positions = [p for slot in slots for p in range(slot.start, slot.start + slot.length)]
        score = Score(list(range(row, row + len(positions))), positions, round=self.round)
        if not self.scores_all:
            score.rows, score.positions = [], [slot.start for slot in slots]
            for slot in slots:
                score.rows.append(row)
                row += slot.length
        return [self.mask] * len(positions), [len(self.prompt) + p for p in positions], score

    def _given(self, drafts: list[Draft]) -> tuple[list[int], list[int], Score]:
        """Tokens, positions and the score of every token but the first of a slot, given the row before it."""
        tokens, positions = [], []
        score = Score([], [], given=[])
        assert score.given is not None
        for at, draft in row_offsets(drafts):
            tokens += draft.tokens
            positions += [len(self.prompt) + p for p in draft.positions]
            score.rows.extend(range(at, at + len(draft.tokens) - 1))
            score.positions.extend(draft.positions[1:])
            score.given.extend(draft.tokens[1:])
        return tokens, positions, score

    def _refine_round(self, drafts: list[Draft]) -> int:
        """Negative, so that refinements never share noise with a plan; the accepted length tells them apart."""
        return -(self.round * (self.config.slot_size + 1) + min(d.accepted for d in drafts))

    def _slots_to_plan_ahead(self, drafts: list[Draft]) -> list[Slot]:
        """Slots to plan in the forward that verifies `drafts`, or none when that does not pay."""
        if self.config.lookahead == "off":
            return []
        chosen = _starts(drafts)
        slots = [slot for slot in self.remaining if slot.start not in chosen]
        if not slots and not self.ended:
            last = self.remaining[-1]
            block = self.config.block_length
            begin = (last.start // block + 1) * block
            slots = self._slots(begin) if begin < self.config.answer_length else []
        if self.config.lookahead == "auto" and slots:
            masks = sum(slot.length for slot in slots)
            likely = self.verified_whole / self.verified
            if likely * (self.cost.tokens_per_overhead + masks) < masks:
                return []
        return slots


def _starts(drafts: list[Draft]) -> set[int]:
    """Which slots are drafted, by their first position."""
    return {draft.slot.start for draft in drafts}
