"""The batched Muon against PyTorch's, matrix by matrix."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SHAPES = [(24, 24), (24, 24), (48, 16), (16, 48), (48, 16), (16, 3, 2, 4)]


def test_three_steps_equal_those_of_pytorch() -> None:
    from training.learn.muon import Muon

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=random) for shape in SHAPES]
    ours = [torch.nn.Parameter(value.clone()) for value in first]
    theirs = [torch.nn.Parameter(value.flatten(1).clone()) for value in first]
    optimiser = Muon(ours, momentum=0.9, weight_decay=0.3)
    reference = torch.optim.Muon(theirs, lr=0.0, momentum=0.9, weight_decay=0.3)
    for rate in (0.02, 0.05, 0.01):
        for mine, their in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=random)
            their.grad = mine.grad.flatten(1).clone()
        optimiser.step(rate)
        reference.param_groups[0]["lr"] = rate
        reference.step()
    for mine, their, start in zip(ours, theirs, first, strict=True):
        moved = (their - start.flatten(1)).norm().detach()
        # Both iterate in bfloat16, in another order of sums.
        assert float((mine.flatten(1) - their).detach().norm()) < 0.01 * float(moved)


def test_momentum_is_stored_and_taken_up() -> None:
    from training.learn.muon import Muon

    random = torch.Generator().manual_seed(1)
    gradients = [torch.randn(8, 4, generator=random) for _ in range(3)]

    def steps(parameter: torch.nn.Parameter, optimiser: Muon, which: list[int]) -> None:
        for number in which:
            parameter.grad = gradients[number].clone()
            optimiser.step(0.1)

    whole = torch.nn.Parameter(torch.ones(8, 4))
    steps(whole, Muon([whole]), [0, 1, 2])
    parted = torch.nn.Parameter(torch.ones(8, 4))
    before = Muon([parted])
    steps(parted, before, [0, 1])
    after = Muon([parted])
    after.load([mean.clone() for mean in before.state()])
    steps(parted, after, [2])
    assert torch.equal(whole, parted)
