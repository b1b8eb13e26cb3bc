"""Frames of the stream between the two processes, however it is cut. Oracle: the messages sent."""

from hypothesis import given
from hypothesis import strategies as st

from strata.server import protocol

MESSAGES = st.one_of(
    st.builds(
        protocol.Tokens, st.integers(0, 9), st.text(), st.lists(st.integers(0, 99)).map(tuple)
    ),
    st.builds(protocol.Progress, st.integers(0, 9), st.integers(0, 99), st.integers(0, 99)),
    st.builds(protocol.Notice, st.text(), st.text(max_size=2000)),
)


@given(st.lists(MESSAGES, max_size=8), st.data())
def test_messages_arrive_whole_however_the_stream_is_cut(messages, data):
    stream = b"".join(map(protocol.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    frames = protocol.Frames()
    came = [
        protocol.decode_up(frame)
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in frames.feed(stream[begin:end])
    ]
    assert came == messages


def test_what_is_not_whole_waits():
    stream = protocol.encode(protocol.Loading(1, 2)) + protocol.encode(protocol.Loading(2, 2))
    frames = protocol.Frames()
    assert len(list(frames.feed(stream[:-1]))) == 1
    assert [protocol.decode_up(frame) for frame in frames.feed(stream[-1:])] == [
        protocol.Loading(2, 2)
    ]


def test_who_stops_reading_loses_nothing():
    frames = protocol.Frames()
    stream = b"".join(protocol.encode(protocol.Loading(n, 3)) for n in range(3))
    first = next(frames.feed(stream))  # the consumer failed at the first
    rest = list(frames.feed(b""))
    assert [protocol.decode_up(frame).num_done for frame in [first, *rest]] == [0, 1, 2]
