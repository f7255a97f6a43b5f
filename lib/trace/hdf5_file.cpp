#include "trace/hdf5_file.hpp"

#include <H5FDpublic.h>
#include <sys/time.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace kvbench::h5 {

namespace {

// Far above any trace or caches file.
constexpr std::uint64_t kMaxObjects = 4000000;
// HDF5 gives the callbacks no argument of ours, so their state is global.
struct Driver {
  H5FD_t base{};  // first: HDF5 knows the driver by it
  const InputFile* file = nullptr;
  haddr_t eoa = 0;
  bool is_open = false;
  Chunk* probe = nullptr;  // set: raw data are not read, only their place is noted here
  bool limits_steps = false;
};
Driver driver;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

H5FD_t* open_once(const char* /*name*/, unsigned flags, hid_t /*access*/, haddr_t /*most*/) {
  if (driver.is_open || (flags & H5F_ACC_RDWR) != 0) {
    return nullptr;
  }
  driver.is_open = true;
  return &driver.base;
}

herr_t close(H5FD_t* /*file*/) {
  driver.is_open = false;
  return 0;
}

herr_t read_part(H5FD_t* /*file*/, H5FD_mem_t type, hid_t /*transfer*/, haddr_t address,
                 std::size_t size, void* to) {
  if (driver.probe != nullptr && type == H5FD_MEM_DRAW) {
    if (size > std::numeric_limits<std::uint32_t>::max()) {
      return -1;
    }
    driver.probe->address = address;
    driver.probe->bytes = static_cast<std::uint32_t>(size);
    return 0;
  }
  const bool fits = size <= driver.file->bytes() && address <= driver.file->bytes() - size;
  return fits && driver.file->read(address, {static_cast<std::uint8_t*>(to), size}).empty() ? 0
                                                                                            : -1;
}

hid_t register_driver() {
  static H5FD_class_t one{};
#if H5_VERSION_GE(1, 13, 2)
  one.version = H5FD_CLASS_VERSION;
  one.value = H5FD_SEC2_VALUE;
#endif
  one.name = "kvbench";
  one.maxaddr = HADDR_MAX / 4;
  one.fc_degree = H5F_CLOSE_STRONG;
  one.open = open_once;
  one.close = close;
  one.get_eoa = [](const H5FD_t*, H5FD_mem_t) { return driver.eoa; };
  one.set_eoa = [](H5FD_t*, H5FD_mem_t, haddr_t address) -> herr_t {
    driver.eoa = address;
    return 0;
  };
  one.get_eof = [](const H5FD_t*, H5FD_mem_t) -> haddr_t { return driver.file->bytes(); };
  one.read = read_part;
  one.write = [](H5FD_t*, H5FD_mem_t, hid_t, haddr_t, std::size_t, const void*) -> herr_t {
    return -1;
  };
  std::ranges::fill(one.fl_map, H5FD_MEM_DEFAULT);
  return H5FDregister(&one);
}

Handle open_file(const InputFile& file) {
  static const hid_t id = register_driver();
  driver.file = &file;
  driver.eoa = 0;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_driver(access, id, nullptr);
  Handle out(H5Fopen(file.path().c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!out) {
    raise<InputError>("{}: HDF5 file is truncated or damaged, expected a complete one ({})",
                      file.path(), last_error());
  }
  return out;
}

}  // namespace

Hdf5File::Hdf5File(const InputFile& file) : id_(open_file(file)), bytes_(file.bytes()) {}

bool Hdf5File::count_object() {
  return ++objects_ <= kMaxObjects;
}

// The probe makes H5Dread_chunk a look-up, where H5Dget_chunk_info of HDF5 1.10 walks over all
// chunks before it.
std::optional<Chunk> find_chunk(hid_t dataset, const std::vector<hsize_t>& corner) {
  Chunk out;
  std::array<std::uint8_t, 16> none{};  // nothing is read
  driver.probe = &out;
  const herr_t status = H5Dread_chunk(dataset, H5P_DEFAULT, corner.data(), &out.mask, none.data());
  driver.probe = nullptr;
  return status >= 0 ? std::optional(out) : std::nullopt;
}

void limit_steps() {
  driver.limits_steps = true;
  begin_step();
}

void begin_step() {
  if (driver.limits_steps) {
    const itimerval once{{0, 0}, {kStepTime.count(), 0}};
    setitimer(ITIMER_PROF, &once, nullptr);
  }
}

}  // namespace kvbench::h5
