from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.types import (
    ChatPrompt,
    GenerateRequest,
    SamplingParams,
    SlotAction,
    SlotView,
    SpanView,
    Tokenize,
    TreeView,
    Usage,
)
from paddock.wire.frames import MAX_FRAME, FrameError, encode, reader_for_gateway, reader_for_worker
from paddock.wire.messages import (
    Abort,
    Accepted,
    ActOnSlot,
    Ask,
    Delta,
    Generate,
    Problem,
    Refused,
    Step,
    ToGateway,
    ToWorker,
    View,
    Watch,
)

_deltas = st.builds(
    Delta,
    st.integers(0, 2**40),
    st.text(),
    st.integers(0, 9),
    st.sampled_from([None, "stop", "length"]),
    st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
_numbers = st.integers(0, 2**40)
_slots = st.builds(SlotView, _numbers, st.sampled_from(["idle", "prompt", "answer"]), *[_numbers] * 6, st.text())
_spans = st.builds(
    SpanView,
    *(_numbers, st.none() | _numbers, _numbers, _numbers, st.booleans(), st.booleans()),
    *(st.lists(_numbers, max_size=3), _numbers, st.text(), st.text()),
)
_trees = st.builds(TreeView, *[_numbers] * 4, st.lists(_spans, max_size=3), _numbers)
_messages = st.one_of(
    st.builds(View, st.lists(_slots, max_size=3), _numbers, st.none() | _trees),
    st.builds(Step, st.lists(_deltas, max_size=4)),
    st.builds(Accepted, st.integers(0, 99), st.integers(0, 99)),
    st.builds(Refused, st.integers(0, 99), st.builds(Problem, st.text(), st.text())),
)


@given(st.lists(_messages, max_size=5), st.data())
def test_messages_are_decoded_from_any_chunks(sent: list[ToGateway], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = reader_for_gateway()
    received = [
        message
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for message in reader.feed(stream[start:end])
    ]
    assert received == sent


def test_both_directions() -> None:
    request = GenerateRequest(ChatPrompt([{"role": "user", "content": "hi"}]), SamplingParams(seed=3), 9, ("x",))
    question = Ask(8, Tokenize(["a", 1], True, False, False))
    sent: list[ToWorker] = [Generate(7, request), question, ActOnSlot(9, SlotAction(0, "erase")), Abort(7), Watch(True)]
    assert reader_for_worker().feed(b"".join(map(encode, sent))) == sent


@given(st.binary(max_size=64))
def test_invalid_bytes_raise_frame_error_or_wait_for_more(data: bytes) -> None:
    try:
        reader_for_worker().feed(data)
    except FrameError:
        pass


def test_a_frame_over_the_limit_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        reader_for_worker().feed((MAX_FRAME + 1).to_bytes(4, "big"))


def test_a_delta_is_small_on_the_wire() -> None:
    assert len(msgspec.msgpack.encode(Step([Delta(1, " the")]))) < 40
