// Replays inputs found by fuzzing: every file of the corpus, every prefix of it, and every byte of
// it changed.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/corpus.hpp"
#include "fuzz/targets.hpp"
#include "support/catch.hpp"

TEST_CASE("the fuzzers' corpus, its prefixes and its one-byte changes do no harm", "[fuzz]") {
    std::filesystem::path const corpus = fuzz::corpus_folder;
    for (fuzz::target const& t : fuzz::targets) {
        std::size_t files = 0;
        for (auto const& entry : std::filesystem::directory_iterator{corpus / t.name}) {
            INFO(entry.path());
            std::ifstream in{entry.path(), std::ios::binary};
            std::vector<char> const text{std::istreambuf_iterator<char>{in}, {}};
            std::vector<std::byte> whole(text.size());
            std::transform(text.begin(), text.end(), whole.begin(), [](char c) {
                return static_cast<std::byte>(c);
            });
            // In a block of exactly its size, so that a sanitizer detects a read past the end.
            for (std::size_t size = 0; size <= whole.size(); ++size) {
                std::vector<std::byte> const beginning(
                    whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)
                );
                t.run(beginning);
            }
            for (std::size_t i = 0; i < whole.size(); ++i) {
                for (auto const flip : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
                    std::vector<std::byte> changed = whole;
                    changed[i] ^= flip;
                    t.run(changed);
                }
            }
            ++files;
        }
        INFO(t.name);
        CHECK(files > 0);
    }
}
