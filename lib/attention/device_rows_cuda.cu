// The CUDA build of attention/device_rows.hpp: its drivers on a CudaMachine.
#include "attention/device_rows_on.hpp"
#include "core/cuda.cuh"

namespace kvbench {

std::unique_ptr<DeviceRows> open_device_rows(MatrixView rows, int ordinal,
                                             std::size_t scratch_bytes) {
  keep_pool(ordinal);
  CudaMachine machine(ordinal, scratch_bytes);
  auto out = std::make_unique<DeviceRowsOn<CudaMachine>>(machine, rows);
  machine.wait();  // tasks of other threads read what this thread's stream uploads
  return out;
}

}  // namespace kvbench
