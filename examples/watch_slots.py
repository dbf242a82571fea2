"""Shows a decode commit by commit: slots appear out of order, text in front of the first mask is final.

python examples/watch_slots.py "def to_json(self, path):"
"""

import argparse

import refusion
from refusion.cli.options import DEFAULT_CHECKPOINT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="def __init__(self, name, value):\n        self.name = name\n")
    parser.add_argument("--model", default=DEFAULT_CHECKPOINT, metavar="DIR")
    parser.add_argument("--length", type=int, default=64, metavar="N", help="tokens of the answer (64)")
    args = parser.parse_args()

    model, tokenizer = refusion.load(args.model), refusion.Tokenizer.load(args.model)
    config = refusion.DecodeConfig(max_new_tokens=args.length, slot_size=8, slot_threshold=0.5, token_threshold=0.2)
    shown: list[str] = ["·"] * args.length
    for event in refusion.stream(model, tokenizer.encode(args.prompt), config):
        if isinstance(event, refusion.Event):
            for position, token in zip(event.positions, event.tokens, strict=True):
                shown[position] = tokenizer.decode([token]).replace("\n", "⏎").replace(" ", "␣") or "∎"
            for position in event.withdrawn:
                shown[position] = "·"
            print("".join(shown))
        else:
            print(f"{event.stats.tokens} tokens in {event.stats.forwards} forwards {event.stats.phases}")


if __name__ == "__main__":
    main()
