from tests.results.conftest import make_record

__all__ = ["make_record"]
