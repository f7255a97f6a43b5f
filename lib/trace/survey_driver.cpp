#include "trace/survey_driver.hpp"

#include <H5FDpublic.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvbench::h5 {

namespace {

// HDF5 hands the driver nothing of ours when it opens a file, so what it reads stands here.
struct Driver {
  H5FD_t base{};  // first: HDF5 knows the driver by it
  const InputFile* file = nullptr;
  haddr_t eoa = 0;
  bool is_open = false;
  RawProbe* probe = nullptr;
};
Driver driver;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

H5FD_t* open_it(const char* /*name*/, unsigned flags, hid_t /*access*/, haddr_t /*most*/) {
  if (driver.is_open || (flags & H5F_ACC_RDWR) != 0) {
    return nullptr;
  }
  driver.is_open = true;
  return &driver.base;
}

herr_t close_it(H5FD_t* /*file*/) {
  return 0;  // and it cannot be opened again
}

haddr_t eoa_of(const H5FD_t* /*file*/, H5FD_mem_t /*type*/) {
  return driver.eoa;
}

herr_t set_eoa(H5FD_t* /*file*/, H5FD_mem_t /*type*/, haddr_t address) {
  driver.eoa = address;
  return 0;
}

haddr_t eof_of(const H5FD_t* /*file*/, H5FD_mem_t /*type*/) {
  return driver.file->bytes();
}

herr_t read_it(H5FD_t* /*file*/, H5FD_mem_t type, hid_t /*transfer*/, haddr_t address,
               std::size_t size, void* to) {
  if (driver.probe != nullptr && type == H5FD_MEM_DRAW) {
    driver.probe->last = {address, size};
    return 0;
  }
  const bool fits = size <= driver.file->bytes() && address <= driver.file->bytes() - size;
  return fits && driver.file->read(address, {static_cast<std::uint8_t*>(to), size}).empty() ? 0
                                                                                            : -1;
}

herr_t write_it(H5FD_t* /*file*/, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t /*address*/,
                std::size_t /*size*/, const void* /*from*/) {
  return -1;
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
  one.open = open_it;
  one.close = close_it;
  one.get_eoa = eoa_of;
  one.set_eoa = set_eoa;
  one.get_eof = eof_of;
  one.read = read_it;
  one.write = write_it;
  std::ranges::fill(one.fl_map, H5FD_MEM_DEFAULT);
  return H5FDregister(&one);
}

}  // namespace

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
