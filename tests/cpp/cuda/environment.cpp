// NVRTC where pip put it: the build looked it up.
#include <cstdlib>

namespace {
const int set = setenv("TRAINC_NVRTC", TRAINC_NVRTC_FILE, 0);
}
