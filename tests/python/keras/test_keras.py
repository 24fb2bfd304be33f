"""`fit` and `evaluate` of compiled Keras models beside Keras's own."""

import fit_ratio
import keras
import numpy as np
import pytest

import trainc


@pytest.fixture(autouse=True)
def compiled_or_failed(strict):
    """Whatever these tests compile is compiled."""


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(70, 12)).astype("float32")  # with a last batch that is smaller
Y = RANDOM.integers(0, 3, 70)


def built(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(1e-2), loss=loss, metrics=["accuracy"], **options)
    return model


def history(model, **options):
    return model.fit(X, Y, epochs=3, batch_size=16, verbose=0, shuffle=False, validation_data=(X, Y), **options).history


def close(got, wanted):
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::trainc.base.messages.RecompileWarning")
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_fit_and_evaluate_are_keras_s(options):
    wanted, model = history(built(**options)), trainc.compile(built(**options))
    close(history(model), wanted)
    told = str(trainc.explain(model))
    assert "train_step" in told and "runs in" not in told
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0), [wanted["val_loss"][-1], wanted["val_accuracy"][-1]], rtol=2e-5)
    assert model.predict(X, verbose=0).shape == (70, 3)


@pytest.mark.filterwarnings("ignore::trainc.base.messages.RecompileWarning")
def test_mixed_precision_and_callbacks():
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = rates[-1] / 2

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        wanted, got = history(built(), callbacks=[Rates()]), history(trainc.compile(built()), callbacks=[Rates()])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(got["loss"], wanted["loss"], rtol=2e-2)
    assert rates[:3] == rates[3:] and len(set(rates)) == 3


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::trainc.base.messages.RecompileWarning")
def test_its_losses_are_as_near_to_f64_as_xla_s():
    fit_ratio.holds(fit_ratio.ratio())


def test_what_is_keras_s_stays_keras_s():
    model = trainc.compile(built(run_eagerly=True))
    model.fit(X, Y, epochs=1, batch_size=35, verbose=0)
    assert "nothing is compiled yet" in str(trainc.explain(model))
    assert "train_step" not in vars(model)


def test_a_model_without_a_step_is_a_user_error():
    with pytest.raises(trainc.UserError, match=r"after model.compile"):
        trainc.compile(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(trainc.UserError, match="fuse_step"):
        trainc.compile(built(), fuse_step=True)
