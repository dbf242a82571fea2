"""The command line as a stranger uses it: results, errors, exit codes, pipes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import refusion
from golden import CHECKPOINT
from refusion.cli import main
from refusion.tokenizer import TextStream, Tokenizer

PROMPT = "def to_json(self, path):"
COMMAND = [sys.executable, "-m", "refusion"]
BYTES = ("--model", "python-bytes")  # the bundled checkpoint whose outputs are recorded


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=120)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory of links to the bundled checkpoint, to be changed file by file."""
    for file in CHECKPOINT.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def test_generate_prints_text_and_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", PROMPT, *BYTES, "--max-new-tokens", "40", "--no-eos"]) == 0
    out, err = capsys.readouterr()
    assert len(out.rstrip("\n")) > 20
    assert err.startswith("40 tokens in ")
    assert "tokens per forward" in err


def test_generate_json(capsys: pytest.CaptureFixture[str], model: refusion.Qwen3) -> None:
    assert main(["generate", PROMPT, *BYTES, "--json", "--max-new-tokens", "32", "--slot-size", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    recommended = json.loads((CHECKPOINT / "generation_config.json").read_text())["refusion"]
    config = refusion.DecodeConfig(**recommended | {"max_new_tokens": 32, "slot_size": 4})
    expected = refusion.generate(model, list(PROMPT.encode()), config)
    assert found["tokens"] == expected.tokens
    assert found["stats"]["tokens"] == len(expected.tokens)
    assert found["stats"]["forwards"] == sum(found["stats"]["phases"].values())


@pytest.mark.parametrize("decoder", ["ar", "mdm"])
def test_generate_with_the_baselines(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", PROMPT, *BYTES, "--decoder", decoder, "--max-new-tokens", "8", "--json", "--no-eos"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["tokens"] == 8


def test_prompt_from_ids_and_from_standard_input() -> None:
    options = (*BYTES, "--json", "--max-new-tokens", "16")
    by_text = json.loads(run("generate", PROMPT, *options).stdout)
    by_ids = json.loads(run("generate", "--prompt-ids", ", ".join(map(str, PROMPT.encode())), *options).stdout)
    by_stdin = json.loads(run("generate", *options, stdin=PROMPT).stdout)
    assert by_text["tokens"] == by_ids["tokens"] == by_stdin["tokens"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "x", "--no-such-flag"], 2, "unrecognized arguments: --no-such-flag"),
        (["generate", "x", "--slot-size", "many"], 2, "invalid int value: 'many'"),
        (["generate", "x", "--slot-size", "0"], 1, "slot_size must be an integer of at least 1, got 0"),
        (["generate", "x", "--slot-threshold", "nan"], 1, "slot_threshold must be a number"),
        (["generate", "x", "--steps", "4"], 1, "--steps belongs to --decoder mdm, not refusion"),
        (["generate", "x", "--model", "/nowhere"], 1, "/nowhere: no such checkpoint directory"),
        (["generate", "--prompt-ids", "1,x"], 1, "--prompt-ids: expected integers, got '1,x'"),
        (["generate", *BYTES, "--prompt-ids", "1,900"], 1, "id 900 lies outside the vocabulary of 259"),
        (
            ["generate", "x", *BYTES, "--max-new-tokens", "2000"],
            1,
            "exceed the model's max_position_embeddings of 1024",
        ),
        (["generate", "x", *BYTES, "--chat"], 1, "the checkpoint has no chat template"),
        (["generate", "x", "--prompt-ids", "1"], 2, "not allowed with argument"),
        (["generate", "x", "--device", "tpu9"], 1, "device 'tpu9' is not known"),
        (["dream"], 2, "invalid choice: 'dream'"),
        ([], 2, "required: COMMAND"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found: object = main(arguments)
    except SystemExit as left:  # argparse leaves this way
        found = left.code
    out, err = capsys.readouterr()
    assert found == code
    assert message in err
    assert "Traceback" not in err
    assert not out


def test_help_and_version_name_everything() -> None:
    assert "generate" in run("--help").stdout
    text = run("generate", "--help").stdout
    for option in ("--slot-threshold", "--semantics", "--json", "--model", "--prompt-ids", "--temperature"):
        assert option in text
    assert run("--version").stdout.startswith("refusion ")


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys, refusion.cli\n"
        "try: refusion.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    """On cores that another process uses as well, spinning ones make a decode twenty times as long."""
    code = (
        "import os, sys, refusion.cli\n"
        "def command(args):\n"
        "    assert 'torch' not in sys.modules\n"  # which reads the setting when it is loaded
        "    print(os.environ.get('GOMP_SPINCOUNT'))\n"
        "    return 0\n"
        "import refusion.cli.info\n"
        "refusion.cli.info.run = command\n"
        "refusion.cli.main(['info'])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | given
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert out.stdout.strip() == expected


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", *BYTES, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"]["parameters"] == 460288
    assert found["build"]["isa_in_use"] in ("baseline", "avx2", "avx512", "amx")
    assert main(["info"]) == 0
    assert "mask token id" in capsys.readouterr().out


def test_a_closed_pipe_ends_quietly() -> None:
    process = subprocess.Popen([*COMMAND, "generate", PROMPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in process.stderr.read()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "generate", PROMPT], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt() -> None:
    slow = (*BYTES, "--max-new-tokens", "900", "--decoder", "mdm", "--block-size", "1", "--no-eos")
    process = subprocess.Popen(
        [*COMMAND, "generate", PROMPT, *slow],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run that a script put into the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)  # it is decoding now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err


def test_a_broken_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(refusion.CheckpointError, match=r"tokenizer\.json: missing"):
        Tokenizer.load(checkpoint)
    (checkpoint / "tokenizer.json").write_text("{")
    with pytest.raises(refusion.CheckpointError, match=r"tokenizer\.json: damaged"):
        Tokenizer.load(checkpoint)


def test_tokenizer_round_trip_and_streaming() -> None:
    tokenizer = Tokenizer.load(CHECKPOINT)
    text = "def f(x):\n\treturn 'é€'\n"
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode([*ids, 257]) == text
    stream = TextStream(tokenizer)
    pieces = [stream.push(ids[:end]) for end in range(len(ids) + 1)]
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish(ids) == text


def test_chat_template(checkpoint: Path) -> None:
    turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template = turns + "{% if add_generation_prompt %}<bot>{% endif %}"
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer.load(checkpoint)
    assert bytes(tokenizer.prompt("hi")) == b"<user>hi<bot>"
    assert bytes(tokenizer.prompt("hi", chat=False)) == b"hi"
