// Activations and their derivatives. All are elementwise on floats: shapes broadcast, everything has one dtype, in
// which it is computed. `dy` is the gradient of the result, `x` the argument of the forward, `y` its result. The order
// of operations is that of PyTorch (ATen/native/cpu/Activation.cpp), so that results agree to the last bits. Bounds
// that a caller may want rounded are Values.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

// --- GELU: x * P(N(0,1) < x), exact by erf or by the tanh fit (Hendrycks and Gimpel, 2016)
Value gelu(Value x);
Value gelu_backward(Value dy, Value x);
Value gelu_tanh(Value x);
Value gelu_tanh_backward(Value dy, Value x);

// --- piecewise linear
/// max(x, 0); NaN stays.
Value relu(Value x);
/// x <= bound ? value : x; NaN stays.
Value threshold(Value x, Value bound, Value value);
Value threshold_backward(Value dy, Value x, Value bound);
Value leaky_relu(Value x, double slope);
Value leaky_relu_backward(Value dy, Value x, Value slope);
/// 0 between -bound and bound; NaN stays.
Value hardshrink(Value x, Value bound);
/// x moved towards 0 by bound, 0 between; NaN stays.
Value softshrink(Value x, Value bound);
/// Of both; at NaN it is 0.
Value shrink_backward(Value dy, Value x, Value bound);
/// x within [low, high]; NaN stays.
Value hardtanh(Value x, Value low, Value high);
Value hardtanh_backward(Value dy, Value x, Value low, Value high);
/// x * hardsigmoid(x)
Value hardswish(Value x);
Value hardswish_backward(Value dy, Value x);
/// (x + 3) / 6 within [0, 1]
Value hardsigmoid(Value x);
Value hardsigmoid_backward(Value dy, Value x);

// --- smooth
/// x * scale above 0, (e^(x * input_scale) - 1) * alpha * scale below: ELU, SELU, CELU.
struct Elu { double alpha = 1, scale = 1, input_scale = 1; };
Value elu(Value x, const Elu&);
Value elu_backward(Value dy, Value x, const Elu&);
Value elu_backward_of_result(Value dy, Value y, const Elu&);
/// log(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold.
Value softplus(Value x, double beta, double threshold);
Value softplus_backward(Value dy, Value x, Value beta, Value threshold);
/// x * sigmoid(x)
Value silu(Value x);
Value silu_backward(Value dy, Value x);
/// x * tanh(softplus(x))
Value mish(Value x);
Value mish_backward(Value dy, Value x);
/// log(sigmoid(x)) without overflow. `z` is e^-|x|, which a caller may have kept.
Value log_sigmoid(Value x, Value z);
Value log_sigmoid_backward(Value dy, Value x, Value z);
Value sigmoid_backward(Value dy, Value y);
Value tanh_backward(Value dy, Value y);

}  // namespace trainc::formulas
