// How the framework draws dropout masks on the CPU: the front end needs the order, the runtime the numbers.
#pragma once
#include <cstdint>

namespace trainc {

//   Twister  the framework's own Mersenne twister, element by element, in memory order of the mask
//   Mkl      one draw of the twister seeds MKL's multiplicative congruential generator MCG31m1, which fills the mask in
//            logical order
// It depends on how the framework was built and, for builds with MKL's random numbers, on the CPU's vendor (torch
// 2.13's wheel has none).
enum class MaskGenerator : uint8_t { Twister, Mkl };
/// Default: by the CPU's vendor; whoever can ask the framework sets it once, before graphs with masks are imported.
MaskGenerator mask_generator();
void set_mask_generator(MaskGenerator);

}  // namespace trainc
