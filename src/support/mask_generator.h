// How the framework draws dropout masks on the CPU: a graph's masks depend on the order, and the runtime draws them.
#pragma once
#include <cstdint>
#include <string_view>

namespace trainc {

//   Twister  the framework's own Mersenne twister, element by element, in memory order of the mask
//   Mkl      one draw of the twister seeds MKL's multiplicative congruential generator MCG31m1, which fills the mask in
//            logical order
// It depends on how the framework was built and, for builds with MKL's random numbers, on the CPU's vendor (torch
// 2.13's wheel has none).
enum class MaskGenerator : uint8_t { Twister, Mkl };
/// The process's. Default: by the CPU's vendor; whoever can ask the framework sets it once, before anything is drawn.
MaskGenerator mask_generator();
void set_mask_generator(MaskGenerator);

std::string_view name_of(MaskGenerator);  // "twister", "mkl"
/// UserError for another word.
MaskGenerator mask_generator_of(std::string_view name);

}  // namespace trainc
