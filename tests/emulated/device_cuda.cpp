// The CUDA build's own sources, for the emulated device.
#include "attention/device_cuda.cu"
