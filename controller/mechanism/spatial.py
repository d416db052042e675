"""Vectors and rotations for the kernels, as tuples: they live in registers, arrays would be allocated.

Symbols: a, b vectors (3,); M 3x3 as three rows; R rotation, body axes to base axes.
"""

import math

from controller.mechanism.compile import inline
from controller.records import Array

Vec = tuple[float, float, float]
Mat = tuple[Vec, Vec, Vec]


@inline
def triple(row: Array, at: int) -> Vec:
    """Three numbers of an array from index `at` on."""
    return (row[at], row[at + 1], row[at + 2])


@inline
def symmetric(row: Array, at: int, a: Vec) -> Vec:
    """M a; the symmetric M is xx yy zz xy xz yz in an array from index `at` on."""
    xx, yy, zz, xy, xz, yz = row[at], row[at + 1], row[at + 2], row[at + 3], row[at + 4], row[at + 5]
    return (
        xx * a[0] + xy * a[1] + xz * a[2],
        xy * a[0] + yy * a[1] + yz * a[2],
        xz * a[0] + yz * a[1] + zz * a[2],
    )


@inline
def add(a: Vec, b: Vec) -> Vec:
    """a + b."""
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


@inline
def sub(a: Vec, b: Vec) -> Vec:
    """a - b."""
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


@inline
def scale(s: float, a: Vec) -> Vec:
    """s a."""
    return (s * a[0], s * a[1], s * a[2])


@inline
def axpy(s: float, a: Vec, b: Vec) -> Vec:
    """s a + b."""
    return (s * a[0] + b[0], s * a[1] + b[1], s * a[2] + b[2])


@inline
def dot(a: Vec, b: Vec) -> float:
    """a . b."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@inline
def cross(a: Vec, b: Vec) -> Vec:
    """a x b."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


@inline
def norm(a: Vec) -> float:
    """|a|."""
    return math.sqrt(dot(a, a))


@inline
def apply(M: Mat, a: Vec) -> Vec:
    """M a; M is three rows."""
    return (
        M[0][0] * a[0] + M[0][1] * a[1] + M[0][2] * a[2],
        M[1][0] * a[0] + M[1][1] * a[1] + M[1][2] * a[2],
        M[2][0] * a[0] + M[2][1] * a[1] + M[2][2] * a[2],
    )


@inline
def apply_t(M: Mat, a: Vec) -> Vec:
    """M^T a."""
    return axpy(a[0], M[0], axpy(a[1], M[1], scale(a[2], M[2])))


@inline
def multiply(A: Mat, B: Mat) -> Mat:
    """A B."""
    return (apply_t(B, A[0]), apply_t(B, A[1]), apply_t(B, A[2]))


@inline
def exponential(w: Vec) -> Mat:
    """Rotation by the vector w (rad), Rodrigues' formula."""
    angle2 = dot(w, w)
    if angle2 < 1e-8:  # series: the quotients lose all digits here
        s, c = 1.0 - angle2 / 6.0, 0.5 - angle2 / 24.0
    else:
        angle = math.sqrt(angle2)
        s, c = math.sin(angle) / angle, (1.0 - math.cos(angle)) / angle2
    x, y, z = w
    return (
        (1.0 - c * (y * y + z * z), c * x * y - s * z, c * x * z + s * y),
        (c * x * y + s * z, 1.0 - c * (x * x + z * z), c * y * z - s * x),
        (c * x * z - s * y, c * y * z + s * x, 1.0 - c * (x * x + y * y)),
    )


@inline
def solve(A: Array, b: Array, size: int) -> float:
    """Solve A x = b in place by elimination with partial pivoting; A (size, size) is destroyed, b becomes x.

    Returns the smallest pivot over the largest with the sign of the determinant: 0 means singular, and b is then
    meaningless.
    """
    smallest, largest, sign = math.inf, 0.0, 1.0
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if abs(A[i, k]) > abs(A[pivot, k]):
                pivot = i
        magnitude = abs(A[pivot, k])
        smallest, largest = min(smallest, magnitude), max(largest, magnitude)
        if not magnitude > 0.0:  # also when NaN
            return 0.0
        if (A[pivot, k] < 0.0) != (pivot != k):
            sign = -sign
        if pivot != k:
            b[k], b[pivot] = b[pivot], b[k]
            for j in range(k, size):
                A[k, j], A[pivot, j] = A[pivot, j], A[k, j]
        inverse = 1.0 / A[k, k]
        A[k, k] = inverse  # a division takes as long as ten multiplications
        for i in range(k + 1, size):
            factor = A[i, k] * inverse
            b[i] -= factor * b[k]
            for j in range(k + 1, size):
                A[i, j] -= factor * A[k, j]
    for k in range(size - 1, -1, -1):
        for j in range(k + 1, size):
            b[k] -= A[k, j] * b[j]
        b[k] *= A[k, k]
    return sign * smallest / largest


@inline
def column_norms(A: Array, out: Array) -> None:
    """Singular values of A (m, n) into out (n,), in no order, by one-sided Jacobi rotations; A is destroyed.

    Turns pairs of columns until all are orthogonal: what is left are the singular values. Accurate to rounding also
    for the smallest one.
    """
    m, n = A.shape
    for _ in range(30):
        largest = 0.0
        for p in range(n - 1):
            for q in range(p + 1, n):
                a, b, c = 0.0, 0.0, 0.0
                for i in range(m):
                    a += A[i, p] * A[i, p]
                    b += A[i, q] * A[i, q]
                    c += A[i, p] * A[i, q]
                if abs(c) <= 1e-15 * math.sqrt(a * b) or c == 0.0:
                    continue
                largest = max(largest, abs(c) / math.sqrt(a * b))
                tau = (b - a) / (2.0 * c)
                t = math.copysign(1.0, tau) / (abs(tau) + math.sqrt(1.0 + tau * tau))
                co = 1.0 / math.sqrt(1.0 + t * t)
                si = co * t
                for i in range(m):
                    A[i, p], A[i, q] = co * A[i, p] - si * A[i, q], si * A[i, p] + co * A[i, q]
        if largest <= 1e-9:  # the next sweep would square it
            break
    for p in range(n):
        out[p] = 0.0
        for i in range(m):
            out[p] += A[i, p] * A[i, p]
        out[p] = math.sqrt(out[p])
