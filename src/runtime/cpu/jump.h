// mt19937 far ahead, without what lies between. Takes: the generator's last 624 words. Gives: those of so many draws
// later.
#pragma once
#include <cstdint>

namespace trainc::runtime {

/// `words`: 624, untempered; they become those that are `steps` draws further on. Costs about as much as three million
/// draws of the twister, and twenty times that the first time that there are so many steps. steps > 0.
void jump(uint32_t* words, int64_t steps);

}  // namespace trainc::runtime
