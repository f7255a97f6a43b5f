#include "attention/device_rows_cuda.cu"
