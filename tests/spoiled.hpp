// Good files that one change spoils, and what the refusals of their readers say.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <functional>
#include <string>
#include <vector>

#include "refusal.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::testing_traces {

inline void read_whole_trace(const std::string& path) {
  validate_values(TraceReader(path));
}

/// `read` refuses the file in a line that begins with its name and has all `parts`.
inline void expect_refusal(const std::string& path, const std::vector<std::string>& parts,
                           const std::function<void(const std::string&)>& read = read_whole_trace) {
  const std::string message = testing_replay::refusal([&] { read(path); }, path);
  EXPECT_EQ(message.rfind(path, 0), 0U) << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

/// A change to the object `object`, and what the message must say.
struct Spoiled {
  std::string object;
  std::function<void(hid_t)> spoil;
  std::vector<std::string> says;
};

/// Each change alone to a file that `make` makes.
inline void expect_refusals(
    const std::vector<Spoiled>& cases, const std::function<std::string()>& make,
    const std::function<void(const std::string&)>& read = read_whole_trace) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const std::string path = make();
    alter(path, cases[i].object.c_str(), cases[i].spoil);
    expect_refusal(path, cases[i].says, read);
  }
}

inline std::function<void(hid_t)> drop_attribute(const char* name) {
  return [=](hid_t o) { H5Adelete(o, name); };
}

inline std::function<void(hid_t)> drop_link(const char* name) {
  return [=](hid_t o) { H5Ldelete(o, name, H5P_DEFAULT); };
}

inline std::function<void(hid_t)> text(const char* name, const std::string& value) {
  return [=](hid_t o) { put_string(o, name, value); };
}

inline std::function<void(hid_t)> integer(const char* name, std::int64_t value) {
  return [=](hid_t o) { put_int(o, name, value); };
}

inline std::function<void(hid_t)> real(const char* name, double value) {
  return [=](hid_t o) { put_double(o, name, value); };
}

inline std::function<void(hid_t)> rename_link(const char* from, const char* to) {
  return [=](hid_t g) { H5Lmove(g, from, g, to, H5P_DEFAULT, H5P_DEFAULT); };
}

inline std::function<void(hid_t)> swap_dataset(const char* name, std::array<hsize_t, 3> dims,
                                               DType type = DType::float16) {
  return [=](hid_t group) {
    H5Ldelete(group, name, H5P_DEFAULT);
    put_dataset(group, name, dims, type, {});
  };
}

/// A dataset without data in place of `name`, of halves unless `type` is given. `set` changes its
/// creation properties.
inline std::function<void(hid_t)> bare_dataset(
    const char* name, std::vector<hsize_t> dims, hid_t type = -1,
    std::function<void(hid_t)> set = [](hid_t) {}) {
  return [=](hid_t group) {
    H5Ldelete(group, name, H5P_DEFAULT);
    const Id space = dims.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const Id plist = H5Pcreate(H5P_DATASET_CREATE);
    set(plist);
    const Id half = make_type(DType::float16, false);
    const Id data = H5Dcreate2(group, name, type < 0 ? hid_t{half} : type, space, H5P_DEFAULT,
                               plist, H5P_DEFAULT);
    EXPECT_GE(data, 0);
  };
}

/// Writes the bits of one half.
inline std::function<void(hid_t)> half_at(std::array<hsize_t, 3> start, std::uint16_t bits) {
  return [=](hid_t data) {
    const std::array<hsize_t, 3> one{1, 1, 1};
    const Id space = H5Dget_space(data);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, one.data(), nullptr);
    const Id memory = H5Screate_simple(3, one.data(), nullptr);
    const Id type = H5Dget_type(data);
    H5Dwrite(data, type, memory, space, H5P_DEFAULT, &bits);
  };
}

/// Where a chunk of a dataset lies in the file.
struct StoredChunk {
  haddr_t address = 0;
  hsize_t bytes = 0;
};

inline StoredChunk stored_chunk(const std::string& path, const char* inside,
                                std::array<hsize_t, 3> at) {
  StoredChunk out;
  alter(path, inside, [&](hid_t data) {
    unsigned mask = 0;
    ASSERT_GE(H5Dget_chunk_info_by_coord(data, at.data(), &mask, &out.address, &out.bytes), 0);
  });
  return out;
}

}  // namespace kvbench::testing_traces
