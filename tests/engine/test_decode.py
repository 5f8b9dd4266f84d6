import torch

from clawexp.engine.decode import sample


def test_sampling_follows_the_distribution_and_reports_its_logprobs():
    logits, temperature = torch.tensor([1.0, -2.0, 0.5, 3.0]), 0.7
    chances = ((torch.arange(4000) + 0.5) / 4000).tolist()
    ids, logprobs = sample(logits.expand(4000, -1), [temperature] * 4000, chances)
    want = (logits / temperature).log_softmax(-1)
    shares = torch.bincount(torch.tensor(ids), minlength=4) / 4000
    torch.testing.assert_close(shares, want.exp(), rtol=0, atol=1e-3)
    torch.testing.assert_close(torch.tensor(logprobs), want[ids])


def test_an_impossible_id_is_never_drawn():
    logits = torch.tensor([[-1e9, 0.0, -1e9, 0.0, -1e9]])
    drawn = {sample(logits, [1.0], [chance])[0][0] for chance in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53)}
    assert drawn == {1, 3}


def test_each_row_has_its_own_temperature():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    _, (cold, hot) = sample(logits, [0.01, 100.0], [0.5, 0.99])
    assert cold > -1e-6
    assert abs(hot - torch.tensor(0.5).log().item()) < 0.01
