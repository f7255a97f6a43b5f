#include "input.hpp"
#include "trace/input_file.hpp"
#include "trace/structure.hpp"
#include "trace/survey.hpp"

namespace kvbench::fuzz {

Bytes input_of(const std::string& path) {
  const h5::InputFile file(path, "a trace");
  return h5::encode_survey(h5::survey(file, h5::trace_request()));
}

}  // namespace kvbench::fuzz
