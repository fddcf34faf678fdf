// corpus.hpp — where the fuzzers' first inputs are: one folder for each target.
#pragma once

namespace fuzz {

/// The absolute path of test/fuzz/corpus. CMake generates its definition, so that no other file
/// contains the path of a clone: the compiler cache then works for clones in other folders.
extern char const* const corpus_folder;

}  // namespace fuzz
