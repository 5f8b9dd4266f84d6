import torch

from clawexp.model.value_head import ValueHead


def test_a_fresh_head_says_one_half_and_is_the_same_each_time():
    torch.manual_seed(1)
    one = ValueHead(8, 4)
    torch.manual_seed(2)
    other = ValueHead(8, 4)
    assert one(torch.randn(3, 8)).tolist() == [0.5] * 3
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_values_stay_where_rewards_are_and_all_weights_learn():
    head = ValueHead(8, 4)
    with torch.no_grad():
        head.outer.fill_(30.0)
    values = head(torch.randn(100, 8))
    assert ((values >= 0) & (values <= 1)).all()
    head(torch.randn(5, 8)).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in head.parameters())
