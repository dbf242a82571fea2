"""Shows a decode commit by commit: slots appear out of order, text in front of the first mask is final.

python examples/watch_slots.py "Write clean(xs) for a list: sort it, then take the first 3, then return the sum."
"""

import argparse

import refusion
from refusion.cli.options import BUNDLED, checkpoint

PROMPT = (
    "Define fold(values), which takes a list: keep only the numbers that are even; add up the numbers that are above "
    "10 in a loop and return it."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--model", type=checkpoint, default=BUNDLED / "code-refusion", metavar="DIR")
    parser.add_argument("--length", type=int, default=64, metavar="N", help="tokens of the answer (64)")
    parser.add_argument("--slot-threshold", type=float, default=0.9, metavar="P", help="of a slot to be written (0.9)")
    args = parser.parse_args()

    model, tokenizer = refusion.load(args.model), refusion.Tokenizer.load(args.model)
    config = refusion.DecodeConfig(max_new_tokens=args.length, slot_threshold=args.slot_threshold, token_threshold=0.5)
    shown: list[str] = ["·"] * args.length
    for event in refusion.stream(model, tokenizer.prompt(args.prompt), config):
        if isinstance(event, refusion.Event):
            for position, token in zip(event.positions, event.tokens, strict=True):
                shown[position] = tokenizer.decode([token]).replace("\n", "⏎").replace(" ", "␣")
            for position in event.withdrawn:
                shown[position] = ""
            print("".join(shown))
        else:
            print(f"{event.stats.tokens} tokens in {event.stats.forwards} forwards {event.stats.phases}")


if __name__ == "__main__":
    main()
