#include "input.hpp"
#include "trace/input_file.hpp"
#include "trace/structure.hpp"
#include "trace/survey_code.hpp"

namespace kvbench::fuzz {

Bytes input_of(const std::string& path) {
  const h5::InputFile file(path, "a trace");
  h5::Survey survey = h5::survey(file, h5::trace_request());
  return h5::encode_survey(survey);
}

}  // namespace kvbench::fuzz
