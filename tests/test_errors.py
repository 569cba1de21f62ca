from __future__ import annotations

from documents import errors as documented_errors
from paddock.errors import ContextLengthExceeded, PaddockError, WorkerCrashed
from paddock.wire.messages import Problem


def _classes(of: type[PaddockError]) -> list[type[PaddockError]]:
    return [of, *(sub for child in of.__subclasses__() for sub in _classes(child))]


def test_every_class_has_a_unique_code() -> None:
    codes = [cls.code for cls in _classes(PaddockError)]
    assert len(codes) == len(set(codes))


def test_an_error_survives_the_wire() -> None:
    for cls in _classes(PaddockError):
        error = Problem.of(cls("why", param="field", retry_after=2, numbers={"n_ctx": 8})).error()
        assert (type(error), error.message, error.param, error.retry_after) == (cls, "why", "field", 2)
        assert error.numbers == {"n_ctx": 8}


def test_the_body_has_the_format_of_openai() -> None:
    error = ContextLengthExceeded("too long", param="messages", numbers={"n_ctx": 8}).body()["error"]
    assert error == {
        "message": "too long",
        "type": "exceed_context_size_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "n_ctx": 8,
    }


def test_an_unknown_code_is_an_internal_error() -> None:
    assert PaddockError.from_code("no such code", "x").status == 500
    assert isinstance(PaddockError.from_code("worker_crashed", "x"), WorkerCrashed)


def test_every_class_and_message_is_documented() -> None:
    """`make check` compares docs/reference/errors.md with the code. This tests how the page is generated."""
    messages = documented_errors.raised()
    page = documented_errors.page()
    for cls in _classes(PaddockError):
        assert vars(cls).get("__doc__"), f"{cls.__name__} does not say when it occurs"
        assert f"`{cls.code}`" in page
        assert cls.__name__ in messages
    assert sum(map(len, messages.values())) > 150, "messages are missing"
    assert "Invalid API Key: none was sent; send it as 'Authorization: Bearer KEY'" in messages["AuthenticationError"]
