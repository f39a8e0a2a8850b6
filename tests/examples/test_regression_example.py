"""examples/regression.py: the smallest task finds the least-squares solution."""

from pathlib import Path

import numpy as np
import torch

from psnode.task import load_task

EXAMPLE = Path(__file__).parents[2] / "examples" / "regression.py"


def test_gradient_descent_ends_at_the_least_squares_solution():
    task = load_task(str(EXAMPLE))
    torch.manual_seed(0)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = data.batch(np.arange(len(data)), None)
    for _ in range(150):
        optimizer.zero_grad()
        task.loss(model, everything)[0].backward()
        optimizer.step()
    design = np.hstack([data.x, np.ones((len(data), 1))])
    solution = np.linalg.lstsq(design, data.y, rcond=None)[0][:, 0]
    np.testing.assert_allclose(model.weight.detach()[0], solution[:20], atol=1e-4)


def test_training_and_evaluation_points_follow_the_same_law():
    task = load_task(str(EXAMPLE))
    train, held_out = task.train_data(), task.eval_data()
    solutions = [np.linalg.lstsq(data.x, data.y, rcond=None)[0] for data in (train, held_out)]
    # each coefficient has a standard error of 0.1 / sqrt(1024), and the difference sqrt(2) times this: six of them
    np.testing.assert_allclose(*solutions, atol=6 * np.sqrt(2) * 0.1 / 32)
    assert not np.array_equal(train.x, held_out.x)
    assert task.size(train.batch(np.arange(5), None)) == 5
