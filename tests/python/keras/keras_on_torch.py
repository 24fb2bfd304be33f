"""Trains Keras models on PyTorch, eager and compiled, and prints what came of it as JSON: a process of its own, for Keras has one
backend in each."""

import json
import os
import sys
import types
import warnings

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

import trainc
from trainc.base import messages
from trainc.cli.loss_rule import SEEDS, disturb

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 6, 6, 3)).astype("float32")
Y = RANDOM.integers(0, 3, 48)


class Losses(keras.callbacks.Callback):
    """Of each batch: Keras tells the mean of an epoch's so far."""

    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2


def built(**options):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((6, 6, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("gelu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(16, activation="tanh"),
            layers.LayerNormalization(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(1e-2), loss=loss, metrics=["accuracy"], **options)
    return model


def trained(model):
    losses = Losses()
    how = {"batch_size": 16, "verbose": 0}
    history = model.fit(X, Y, epochs=3, shuffle=False, validation_data=(X, Y), callbacks=[losses], **how)
    return {
        "losses": losses.losses,
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "evaluated": [float(v) for v in model.evaluate(X, Y, **how)],
        "predicted": list(model.predict(X, **how).shape),
    }


def of_seed(seed):
    model = built()
    floats = [p for p in model.parameters() if p.is_floating_point()]  # not the counter of dropout's draws
    disturb(types.SimpleNamespace(parameters=lambda: floats), seed)
    return trained(model)


def told(model):
    return [line.strip() for line in str(trainc.explain(model)).splitlines()]


torch.manual_seed(0)
found = {"eager": trained(built()), "disturbed": [of_seed(seed) for seed in SEEDS]}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = trainc.compile(built())
    found["compiled"], found["told"] = trained(model), told(model)
    model.compile(optimizer=model.optimizer, loss=model.loss, jit_compile=True)  # another compiler would take our call, too
    model.fit(X, Y, batch_size=16, verbose=0)
    model.compile(optimizer=model.optimizer, loss=model.loss, run_eagerly=True)
    model.fit(X[:5], Y[:5], verbose=0)
    found["told at the end"] = told(model)
found["warnings"] = [
    str(w.message) for w in caught if issubclass(w.category, (messages.TraincWarning, messages.RecompileWarning))
]
for options in ({"fuse_step": True}, {"memory": "1GB"}):
    try:
        trainc.compile(built(), **options)
    except trainc.UserError as error:
        found.setdefault("errors", []).append(str(error))
json.dump(found, sys.stdout)
