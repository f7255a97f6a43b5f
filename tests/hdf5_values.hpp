// Values through H5Dread, with HDF5's own chunks, filters and conversions: the slow reference of
// what lib/trace reads without it.
#pragma once

#include <hdf5.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench::testing_traces {

/// An HDF5 object of any kind, closed at the end of its scope.
class Id {
 public:
  Id(hid_t id) : id_(id) {}
  ~Id() {
    if (id_ >= 0) {
      H5Idec_ref(id_);
    }
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
};

/// `count` elements from `start` on, [rank] each, of the dataset `inside` of a trace of `type`.
inline std::vector<float> hdf5_values(const std::string& path, const std::string& inside,
                                      DType type, const std::vector<hsize_t>& start,
                                      const std::vector<hsize_t>& count) {
  const Id file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const Id data = H5Dopen2(file, inside.c_str(), H5P_DEFAULT);
  const Id space = H5Dget_space(data);
  const Id memory = H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  const auto elements = static_cast<std::size_t>(
      std::accumulate(count.begin(), count.end(), hsize_t{1}, std::multiplies<>()));
  std::vector<float> out(elements);
  std::vector<std::uint16_t> bits(elements);
  const bool narrow = type == DType::bfloat16;
  const herr_t done = H5Dread(data, narrow ? H5T_NATIVE_UINT16 : H5T_NATIVE_FLOAT, memory, space,
                              H5P_DEFAULT, narrow ? static_cast<void*>(bits.data()) : out.data());
  for (std::size_t i = 0; narrow && i < elements; ++i) {
    out[i] = std::bit_cast<float>(std::uint32_t{bits[i]} << 16);
  }
  if (done < 0) {
    throw std::runtime_error(path + inside + ": H5Dread failed");
  }
  return out;
}

/// One head of a dataset [heads, rows, width].
inline std::vector<float> hdf5_head(const std::string& path, const std::string& inside, DType type,
                                    Index head, Index rows, Index width) {
  return hdf5_values(path, inside, type, {static_cast<hsize_t>(head), 0, 0},
                     {1, static_cast<hsize_t>(rows), static_cast<hsize_t>(width)});
}

}  // namespace kvbench::testing_traces
