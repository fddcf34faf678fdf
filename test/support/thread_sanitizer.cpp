// Linked into every program of the tree with the thread sanitizer.

// Asio decrements an executor's reference count with a fence, which the thread sanitizer does not
// model: the last owner's delete looks like a race with earlier owners.
extern "C" char const* __tsan_default_suppressions() {
    return "race:boost::asio::detail::ref_count_down\n";
}
