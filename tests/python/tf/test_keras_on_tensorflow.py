"""`fit` and `evaluate` of Keras models on TensorFlow, compiled, beside Keras's own with XLA."""

import numpy as np
import pytest

import trainc

pytest.importorskip("tensorflow", reason="make test-tensorflow")
import keras  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::trainc.base.messages.RecompileWarning", "error::trainc.TraincWarning")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(35, 8, 8, 3)).astype("float32")  # with a last batch that is smaller
Y = RANDOM.integers(0, 3, 35)


def built(**options):
    layers = keras.layers
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(),
            layers.Flatten(), layers.Dense(8, activation="gelu"), layers.Dropout(0.3), layers.Dense(3, dtype="float32"),
        ]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"optimizer": keras.optimizers.Adam(1e-2), "jit_compile": True, **options}
    model.compile(loss=loss, metrics=["accuracy"], **options)
    return model


def history(model):
    return model.fit(X, Y, epochs=2, batch_size=16, verbose=0, shuffle=False, validation_data=(X, Y)).history


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_fit_and_evaluate_are_keras_s(options):
    wanted, model = history(built(**options)), trainc.compile(built(**options))
    got = history(model)
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-4)
    told = str(trainc.explain(model))
    assert "train_step" in told and "runs in" not in told
    assert model.predict(X, verbose=0).shape == (35, 3) and "train_step" not in vars(model) and not model.run_eagerly


def test_mixed_precision_and_a_rate_that_changes():
    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2

    def fit(model):
        return model.fit(X, Y, epochs=2, batch_size=35, verbose=0, shuffle=False, callbacks=[Rates()]).history["loss"]

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:

        def sgd():
            return built(optimizer=keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0))

        wanted, got = fit(sgd()), fit(trainc.compile(sgd()))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(got, wanted, rtol=2e-2)


def test_what_is_keras_s_stays_keras_s():
    model = trainc.compile(built(run_eagerly=True, jit_compile=False))
    model.fit(X, Y, epochs=1, batch_size=35, verbose=0)
    assert "nothing is compiled yet" in str(trainc.explain(model))
    for bad in ({"memory": "1GB"}, {"fuse_step": True}):
        with pytest.raises(ValueError):
            trainc.compile(built(), **bad).fit(X, Y, verbose=0)
