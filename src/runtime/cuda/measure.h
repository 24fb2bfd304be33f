// How long a kernel, or a product of the library's, takes on a device by itself. Takes: a driver. Gives: seconds.
#pragma once
#include "runtime/cuda/driver.h"

namespace trainc::runtime::cuda {

/// The least of several rounds, by the device's clock, after a run that is not counted. What is read are random numbers
/// of magnitudes below 1 (a device that multiplies zeros draws less power, and is clocked higher). InternalError where
/// there is no memory for it, or the driver refuses something.
double seconds_of(Driver&, const plan::Product&, int64_t bytes);
/// Needs: all arguments are floats, of so many bytes each.
double seconds_of(Driver&, const plan::Kernel&, int64_t extent, const std::vector<int64_t>& argument_bytes);

}  // namespace trainc::runtime::cuda
