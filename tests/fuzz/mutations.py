"""What becomes of bytes on their way: a few changed, put in, taken out, or everything after some place lost."""

from hypothesis import strategies as st

Edit = tuple[int | float, str, bytes]  # where (a place, or a share of the length), what, and with which bytes

EDITS = st.lists(
    st.tuples(
        st.integers(0, 400) | st.floats(0.0, 1.0),
        st.sampled_from(["replace", "insert", "delete", "cut"]),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)


def mutated(data: bytes, edits: list[Edit]) -> bytes:
    """`data` after the edits, one after the other."""
    for where, what, piece in edits:
        at = round(where * len(data)) if isinstance(where, float) else where % (len(data) + 1)
        if what == "cut":
            data = data[:at]
        else:
            put = b"" if what == "delete" else piece
            data = data[:at] + put + data[at + (0 if what == "insert" else len(piece)) :]
    return data
