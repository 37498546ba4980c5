"""FedJAX: its federated averaging, one compiled client step, told whom to draw and in which order."""

from __future__ import annotations

from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from common import Problem, begin

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 still calls it by the name it had before jax 0.6

import fedjax
from fedjax.algorithms import fed_avg

Params = dict[str, jax.Array]


def loss(params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    tensors, h = list(params.values()), batch["x"].reshape(len(batch["x"]), -1)
    for i in range(0, len(tensors), 2):
        h = (jax.nn.relu(h) if i else h) @ tensors[i].T + tensors[i + 1]
    return -jnp.take_along_axis(jax.nn.log_softmax(h), batch["y"][:, None], 1).mean()


def cohort(given: Problem, t: int) -> list[tuple[bytes, fedjax.ClientDataset, jax.Array]]:
    """The clients of a round, each with its samples in the order in which it is to see them."""
    found = []
    for client, steps in zip(given.drawn[t], given.index[t], strict=True):
        mine = steps.reshape(-1)
        shard = fedjax.ClientDataset({"x": given.x[mine], "y": given.y[mine].astype(np.int32)})
        found.append((str(client).encode(), shard, jax.random.PRNGKey(0)))
    return found


def main() -> None:
    given, course = begin()
    assert given.model == "mlp"
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=given.index.shape[3], num_epochs=1, skip_shuffle=True)
    # JAX sorts dict keys, so the layers get names that sort as they follow each other.
    keys = [f"{i:02}" for i in range(len(given.weights))]
    params = {k: jnp.asarray(w) for k, w in zip(keys, given.weights.values(), strict=True)}
    optimisers = fedjax.optimizers.sgd(given.lr), fedjax.optimizers.sgd(1.0)
    algorithm = fed_avg.federated_averaging(jax.grad(loss), *optimisers, batches)
    state = algorithm.init(params)
    for t in range(given.rounds):
        state, _ = algorithm.apply(state, cohort(given, t))
        if t + 1 in (given.warm, given.rounds):
            jax.block_until_ready(state.params)
        course.ended(t + 1)
    end = {n: np.asarray(state.params[k]) for n, k in zip(given.weights, keys, strict=True)}
    course.finish(end, fedjax=version("fedjax"), jax=version("jax"))


if __name__ == "__main__":
    main()
