#!/usr/bin/env python3
"""figures_test.py: figures.py counts code lines and data members, finds wrong figures, and mends them."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
import figures

source = """\
// A comment with 'one quote.
#include <string>

/* A comment
   of two lines */
struct options {
    int depth_max = 64;  // int depth_max = 65;
    std::size_t bytes_max = std::size_t{256} << 10;
    unsigned many = 1'000'000U;
    budget reports_{100};
};
char const* const address = "http://host";
char const quote = '"';  // a comment
int const n = *
    &number;
auto const raw = R"(
// no comment
)";
int const many_more = 2'000;  /* isn't
    one line */
"""

classes = """\
#define MEMBER(type) \\
    type name;
class [[nodiscard]] forward;
template <class T>
class LIB_EXPORT first final : public base<T>, private other {
    using type = int;
    static constexpr int limit = 3;
    enum class state { idle, busy };

public:
    first() : one_{1}, two_{2} {}
    first(first const&) = delete;
    first& operator=(first const&) = delete;
    int get() const noexcept { return one_; }
    virtual void pure() const = 0;
    friend class second;

private:
    struct nested {
        int x = 0;
        int y = 0;
    };
    int one_{1};
    std::map<int, std::string> two_;
    std::size_t three_ = std::size_t{1} << 20;
    void (*four_)(void*, int) noexcept = nullptr;
    std::array<char, 4> five_[2];
    unsigned six_ : 3;
    struct {
        int z;
    } seven_;
    std::function<void(int)> eight_ = [](int a) { int b = a; (void)b; };
};
"""


class sources(unittest.TestCase):
    def test_code_lines_are_neither_blank_nor_comment(self):
        self.assertEqual(figures.code_lines(source), 15)

    def test_data_members_are_those_of_the_class_itself(self):
        found = dict(figures.data_members(classes))
        self.assertEqual(found["first"], ["one_", "two_", "three_", "four_", "five_", "six_", "seven_", "eight_"])
        self.assertEqual(found["nested"], ["x", "y"])
        self.assertEqual(set(found), {"first", "nested", None})


class documents(unittest.TestCase):
    """A tree with one source file and one document."""

    def setUp(self):
        tree = tempfile.TemporaryDirectory()
        self.addCleanup(tree.cleanup)
        self.addCleanup(setattr, figures, "root", figures.root)
        figures.root = pathlib.Path(tree.name)
        for folder in ("docs", "lib/include", "lib/src/room", "lib/fabric", "lib/nvme", "apps"):
            (figures.root / folder).mkdir(parents=True)
        (figures.root / "lib/src/room/options.hpp").write_text(source)
        self.page = figures.root / "docs/page.md"

    def check(self, wrong, right, complaints):
        """The text `wrong` has these complaints, and is mended to `right`, which has none."""
        self.page.write_text(wrong)
        self.assertEqual(figures.differences(), complaints)
        self.assertEqual(self.page.read_text(), wrong)
        figures.differences(write=True)
        self.assertEqual(self.page.read_text(), right)
        self.assertEqual(figures.differences(), [] if wrong != right else complaints)

    def test_a_wrong_constant_is_found_and_mended(self):
        mark = "<!-- figure: depth_max in lib/src/room/options.hpp -->"
        self.check(f"# Page\n\nA queue of 65{mark} places, 64{mark}.\n", f"# Page\n\nA queue of 64{mark} places, 64{mark}.\n", ["docs/page.md:3: expected 64, found 65"])

    def test_a_wrong_size_is_found_and_keeps_its_unit(self):
        mark = "<!-- figure: bytes_max in lib/src/room/options.hpp -->"
        self.check(f"0.5 MiB{mark}\n", f"0.25 MiB{mark}\n", ["docs/page.md:1: expected 0.25 MiB, found 0.5 MiB"])
        self.check(f"255 KiB{mark}, 262,144{mark}\n", f"256 KiB{mark}, 262,144{mark}\n", ["docs/page.md:1: expected 256 KiB, found 255 KiB"])

    def test_a_wrong_result_of_arithmetic_is_found_and_mended(self):
        mark = "<!-- figure: (many - 2 * depth_max) * reports_ in lib/src/room/options.hpp -->"
        self.check(f"1{mark}\n", f"99,987,200{mark}\n", ["docs/page.md:1: expected 99,987,200, found 1"])

    def test_a_constant_is_found_in_a_folder_if_it_has_one_value_there(self):
        mark = "<!-- figure: depth_max in lib/src -->"
        (figures.root / "lib/src/room/other.hpp").write_text("int bytes_max = 1;\nint depth_max = options::depth_max;\n")
        self.check(f"65{mark}\n", f"64{mark}\n", ["docs/page.md:1: expected 64, found 65"])
        mark = "<!-- figure: bytes_max in lib/src -->"
        self.check(f"64{mark}\n", f"64{mark}\n", ["docs/page.md:1: bytes_max has 2 values in lib/src"])

    def test_a_mark_without_its_constant_or_its_figure_is_found(self):
        for text, complaint in [
            ("1<!-- figure: gone in lib/src/room/options.hpp -->\n", "gone has 0 values in lib/src/room/options.hpp"),
            ("1<!-- figure: address in lib/src/room/options.hpp -->\n", "address has 0 values in lib/src/room/options.hpp"),
            ("many<!-- figure: many in lib/src/room/options.hpp -->\n", "a mark without a figure before it"),
            ("<!-- lines: test/docs/figures.py writes this -->\n<!-- end of lines -->\n", "there is no table lines"),
        ]:
            self.check(text, text, [f"docs/page.md:1: {complaint}"])

    def test_a_wrong_table_is_found_and_mended(self):
        begin, end = "<!-- largest files: test/docs/figures.py writes this -->\n\n", "\n\n<!-- end of largest files -->\n"
        table = "| file | code lines |\n| --- | ---: |\n| lib/src/room/options.hpp | 100 |"
        self.check(
            begin + table.replace("100", "200") + end,
            begin + table + end,
            ["docs/page.md:5: expected '| lib/src/room/options.hpp | 100 |', found '| lib/src/room/options.hpp | 200 |'"],
        )

    def test_the_goal_of_code_lines_is_met_or_missed(self):
        self.assertIn("at most 26,500: **met**", figures.code_lines_by_folder())
        (figures.root / "lib/src/room/large.cpp").write_text("int x;\n" * 26600)
        self.assertIn("at most 26,500: **missed by 200**", figures.code_lines_by_folder())

    def test_the_program_fails_until_the_figures_are_written(self):
        self.page.write_text("65<!-- figure: depth_max in lib/src/room/options.hpp -->\n")
        self.assertEqual(run(), ("docs/page.md:1: expected 64, found 65\nrun test/docs/figures.py --write\n", 1))
        self.assertEqual(run("--write"), ("", 0))
        self.assertEqual(run(), ("", 0))


def run(*options):
    with unittest.mock.patch("sys.argv", ["figures.py", *options]), contextlib.redirect_stdout(io.StringIO()) as printed:
        status = figures.main()
    return printed.getvalue(), status


unittest.main()
