"""`fit` through `trainc.compile` and Keras's own, each beside the same in fp64, on the backend of this process (KERAS_BACKEND).
As a program it prints what came of it as JSON:

    KERAS_BACKEND=torch python tests/python/keras/fit_ratio.py

A dropout mask is an input: what Keras draws in fp64 are other masks, and draws are compared elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import sys

import keras
import numpy as np

import trainc

SEEDS, BATCHES, SIZE = 16, 6, 16
FLOOR = 6e-8  # half of a loss's last bit: below it a ratio says nothing


class Losses(keras.callbacks.Callback):
    """What Keras tells after each batch: the mean of the epoch's losses so far."""

    def __init__(self):
        self.told = []

    def on_train_batch_end(self, batch, logs=None):
        self.told.append(float(logs["loss"]))


@contextlib.contextmanager
def computing_in(dtype: str):
    with contextlib.ExitStack() as stack:
        if keras.config.backend() == "jax":
            import jax

            stack.enter_context(jax.enable_x64(dtype == "float64"))
        stack.callback(keras.config.set_floatx, keras.config.floatx())
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        stack.callback(keras.config.set_dtype_policy, "float32")
        yield


def built() -> keras.Model:
    layers = keras.layers
    image, kept = layers.Input((6, 6, 3)), layers.Input((16,))
    x = layers.Conv2D(8, 3, padding="same")(image)
    x = layers.Activation("gelu")(layers.BatchNormalization()(x))
    x = layers.Dense(16, activation="tanh")(layers.Flatten()(x))
    x = layers.LayerNormalization()(layers.Multiply()([x, kept]))
    model = keras.Model([image, kept], layers.Dense(3)(x))
    options = {} if keras.config.backend() == "torch" else {"jit_compile": True}  # PyTorch's would be Inductor
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(2.0**-7), loss=loss, **options)
    return model


class Trainer:
    """A model that is trained from each seed's weights anew, so that it is compiled once."""

    def __init__(self, dtype: str, compiled: bool = False):
        self.dtype = dtype
        with computing_in(dtype):
            self.model = built()
            self.model.optimizer.build(self.model.trainable_variables)
            self.fresh = [keras.ops.convert_to_numpy(v) for v in self.model.optimizer.variables]
            self.first = self.model.get_weights()  # scales, biases and means begin with Keras's values
            if compiled:
                self.model = trainc.compile(self.model)

    def __call__(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The losses, and all weights in one row."""
        draw = np.random.default_rng(seed)
        rows = SIZE * BATCHES
        data = [draw.normal(size=(rows, 6, 6, 3)), draw.binomial(1, 0.75, (rows, 16)) / 0.75]
        labels = draw.integers(0, 3, rows)
        with computing_in(self.dtype):
            start = [draw.normal(size=w.shape) / np.sqrt(np.prod(w.shape[:-1])) if w.ndim > 1 else w for w in self.first]
            self.model.set_weights([w.astype("float32").astype(self.dtype) for w in start])
            for variable, value in zip(self.model.optimizer.variables, self.fresh, strict=True):
                variable.assign(value)
            losses = Losses()
            data = [x.astype("float32").astype(self.dtype) for x in data]
            self.model.fit(data, labels, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[losses])
            weights = np.concatenate([np.ravel(w).astype(np.float64) for w in self.model.get_weights()])
        return np.array(losses.told), weights


def ratio() -> dict:
    """Of the losses the root mean square of the errors, ours and Keras's, and the "ratio" of the two; of the last "weights" the
    geometric mean of our error over Keras's; and what `trainc.explain` says of the model."""
    # Ours before the others: what fills a cache of Keras's between two calls is a change that Dynamo may not see.
    ours = Trainer("float32", compiled=True)
    runs = [[train(seed) for seed in range(SEEDS)] for train in (ours, Trainer("float32"), Trainer("float64"))]
    errors, weights = [], []
    for (mine, got), (its, wanted), (true, last) in zip(*runs, strict=True):
        errors.append([mine - true, its - true])
        weights.append(np.linalg.norm(got - last) / np.linalg.norm(wanted - last))
    losses = np.sqrt(np.mean(np.square(errors), (0, 2)))
    return {
        "losses": losses.tolist(),
        "ratio": float(losses[0] / losses[1]),
        "weights": float(np.exp(np.mean(np.log(weights)))),
        "told": str(trainc.explain(ours.model)),
    }


def holds(found: dict) -> None:
    mine, its = found["losses"]
    assert 0 < its < 1e-5, "the oracle is not what it should be"
    assert mine <= 1.1 * its + FLOOR
    assert found["weights"] < 1.25  # a model's differs by a third, by chance, and Adam makes more of it
    assert "runs in" not in found["told"]


if __name__ == "__main__":
    json.dump(ratio(), sys.stdout)
