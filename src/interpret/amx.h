// AMX on CPUs that lack it, for tests: the instructions that our kernels use are carried out when the CPU refuses them
// (SIGILL). So the code itself runs anywhere, its encodings and addresses included. What tdpbf16ps computes is
// value.h's, written after Intel's pseudo code. Takes: code of level amx. Includes: support.
#pragma once
#include <cstdint>

namespace trainc::interpret {

/// Makes code of level amx run in this process, and machine_cpu_level() say so, from now on. Nothing where the machine
/// has AMX. Gives whether there is or now seems to be: the rest of such code needs AVX-512 with bf16.
bool emulate_amx();
/// Instructions carried out so far.
int64_t emulated_instructions();

}  // namespace trainc::interpret
