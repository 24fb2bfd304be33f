"""A ResNet-18 in Keras on TensorFlow, trained by `fit` on random pictures of 32 x 32: `trainc.compile(model)` is all that is
added.

    python examples/tf/keras_resnet.py             # the steps of fit and evaluate are plans
    python examples/tf/keras_resnet.py --xla       # Keras's own, to compare
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from keras import layers

import trainc


def block(x, width: int, step: int):
    straight = x
    x = layers.Conv2D(width, 3, step, "same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(width, 3, 1, "same", use_bias=False)(x))
    if step > 1:
        straight = layers.BatchNormalization()(layers.Conv2D(width, 1, step, use_bias=False)(straight))
    return layers.ReLU()(layers.Add()([x, straight]))


def resnet(width: int, blocks: int) -> keras.Model:
    pictures = keras.Input((32, 32, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, 1, "same", use_bias=False)(pictures)))
    for stage in range(4):
        for i in range(blocks):
            x = block(x, width << stage, 2 if stage and i == 0 else 1)
    return keras.Model(pictures, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"width": 64, "blocks": 2, "pictures": 512, "batch": 32, "epochs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--xla", action="store_true")
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    model = resnet(args.width, args.blocks)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, metrics=["accuracy"], jit_compile=True)
    if not args.xla:
        trainc.compile(model)
    draw = np.random.default_rng(0)
    classes = draw.integers(0, 10, args.pictures)
    pictures = draw.normal(size=(args.pictures, 32, 32, 3)) + draw.normal(size=(10, 32, 32, 3))[classes]
    model.fit(pictures.astype("float32"), classes, batch_size=args.batch, epochs=args.epochs, verbose=2)


if __name__ == "__main__":
    main()
