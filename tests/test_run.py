"""What a run decides by itself; runs as a whole are in tests/test_experiment.py."""

from clawexp.run import probe_ids


def test_the_probe_stays_within_the_vocabulary_and_reaches_across_it() -> None:
    ids = probe_ids(4096)
    assert all(0 <= token < 4096 for token in ids)
    assert len(set(ids)) > 50
    assert max(ids) - min(ids) > 3000
    assert all(0 <= token < 3 for token in probe_ids(3))
