#include "trace/survey_driver.hpp"

#include <H5FDpublic.h>
#include <sys/time.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvbench::h5 {

namespace {

// HDF5 gives the callbacks no argument of ours, so their state is global.
struct Driver {
  H5FD_t base{};  // first: HDF5 knows the driver by it
  const InputFile* file = nullptr;
  haddr_t eoa = 0;
  bool is_open = false;
  RawProbe* probe = nullptr;
  std::chrono::microseconds step_time{};
};
Driver driver;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

H5FD_t* open_once(const char* /*name*/, unsigned flags, hid_t /*access*/, haddr_t /*most*/) {
  if (driver.is_open || (flags & H5F_ACC_RDWR) != 0) {
    return nullptr;
  }
  driver.is_open = true;
  return &driver.base;
}

herr_t read_part(H5FD_t* /*file*/, H5FD_mem_t type, hid_t /*transfer*/, haddr_t address,
                 std::size_t size, void* to) {
  if (driver.probe != nullptr && type == H5FD_MEM_DRAW) {
    driver.probe->last = {address, size};
    return 0;
  }
  const bool fits = size <= driver.file->bytes() && address <= driver.file->bytes() - size;
  return fits && driver.file->read(address, {static_cast<std::uint8_t*>(to), size}).empty() ? 0
                                                                                            : -1;
}

hid_t driver_id() {
  static H5FD_class_t one{};
#if H5_VERSION_GE(1, 13, 2)
  one.version = H5FD_CLASS_VERSION;
  one.value = H5FD_SEC2_VALUE;
#endif
  one.name = "kvbench-survey";
  one.maxaddr = HADDR_MAX / 4;
  one.fc_degree = H5F_CLOSE_WEAK;
  one.open = open_once;
  one.close = [](H5FD_t*) -> herr_t { return 0; };
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

}  // namespace

void limit_steps(std::chrono::microseconds time) {
  driver.step_time = time;
  begin_step();
}

void begin_step() {
  constexpr std::int64_t second = 1'000'000;
  const std::int64_t us = driver.step_time.count();
  const itimerval once{{0, 0}, {us / second, us % second}};
  setitimer(ITIMER_PROF, &once, nullptr);
}

Handle survey_access(const InputFile& file) {
  driver.file = &file;
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_driver(access, driver_id(), nullptr);
  return access;
}

RawProbe::RawProbe() {
  driver.probe = this;
}

RawProbe::~RawProbe() {
  driver.probe = nullptr;
}

}  // namespace kvbench::h5
