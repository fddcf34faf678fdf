#include "rdma-copy/receiver.hpp"

#include <boost/asio/co_spawn.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include <rcverbs/channel_error.hpp>

namespace copy {

namespace {

bool is_aligned(std::uint64_t bytes) { return bytes % block_alignment == 0; }

}  // namespace

std::string why(int error) {
    if (error == error_source_changed) return "the source has changed while it was copied";
    if (error == EBADMSG) return "the data has changed on its way";
    if (error == EUCLEAN) return "the disk does not give back what was written";
    if (error == EEXIST) return "it exists; files and links are replaced with --force";
    if (error == error_place_unclear)
        return "it is a directory: add --no-target-directory if the interrupted copy has created "
               "it, "
               "or a slash to copy into it";
    if (error == error_type_not_copied)
        return "neither a file, nor a directory, nor a symbolic link: skipped";
    if (error == error_names_too_many) return "too many files with several names: copy in parts";
    if (error == error_names_differ)
        return "its file system does not list the names that were copied: it may not tell a from "
               "A, or "
               "another program removes files";
    if (error == error_names_to_keep)
        return "too many names in directories that are not finished: copy in parts";
    if (error == error_name_twice) return "another source has this name";
    if (error == error_target_changed)
        return "another program has put something else in its place, or in that of its directory";
    if (error == error_into_itself)
        return "a directory cannot be copied into itself, or into one below it";
    if (error == error_name_reserved) return "the name of a temporary file of rdma-copy: skipped";
    return std::strerror(error);
}

std::string why_of_source(int error) {
    bool const is_of_target = error == EBADMSG || error == EUCLEAN || error == EEXIST;
    return is_of_target ? std::strerror(error) : why(error);
}

std::string why_there(std::string const& side, int error) {
    // These concern both sides.
    bool const is_of_both = error == error_source_changed || error == error_into_itself;
    if (is_of_both || (error == EBADMSG && side == "target")) return why(error);
    return "at the " + side + ": " + (side == "source" ? why_of_source(error) : why(error));
}

std::string not_deleted(std::string const& why) { return "not deleted: " + why; }

std::string destination::place_of(std::string const& path) const {
    std::string inside = path;
    if (name) inside.replace(0, std::min(path.find('/'), path.size()), *name);
    return directory.empty() ? inside : directory + '/' + inside;
}

destination destination_of(
    tree const& root, std::string const& name, placing where, bool continues, bool lists, int& error
) {
    destination to;
    to.root = &root;
    to.directory = name;
    error = 0;
    auto const identify = [&] {
        int absent = 0;
        struct stat const s = root.status_of(to.directory, absent);
        if (absent == 0) to.id = file_id::of(s);
    };
    if (name.empty()) {
        identify();
        return to;
    }
    if (!is_inside(name) || is_reserved(name)) {
        error = EINVAL;
        return to;
    }
    int absent = 0;
    struct stat const s = root.status_of(name, absent);
    bool const is_there = absent == 0 && S_ISDIR(s.st_mode);
    // It may be what an earlier copy has made, or the directory that it went into.
    if (is_there && where == placing::either && continues) error = error_place_unclear;
    if (is_there && where != placing::onto) {
        to.id = file_id::of(s);
        return to;
    }
    if (where == placing::into && lists) {
        // It would be made, if the one that it is in is there.
        to.is_absent = true;
        if (is_there || absent != ENOENT) error = absent;
        else static_cast<void>(root.parent_of({name}, error));
        return to;
    }
    if (where == placing::into) {
        error = root.make_directory(name, to.id.emplace(), 0777);
        return to;
    }
    std::size_t const slash = name.rfind('/');
    bool const is_in_root = slash == std::string::npos;
    to.directory = is_in_root ? "" : name.substr(0, slash);
    to.name = is_in_root ? name : name.substr(slash + 1);
    identify();
    return to;
}

receiver::receiver(link& over, disk& files, destination to, failure_report report, result& counters)
    : link_{over},
      disk_{files},
      to_{std::move(to)},
      report_{std::move(report)},
      result_{counters},
      slots_{
          over.connection().domain(),
          over.slots() * over.slot_bytes(),
          rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write},
      io_{over.io(), files, slots_.bytes(), over.slots()},
      is_granted_(over.slots(), true),
      top_{std::make_shared<target_directory>()},
      batch_job_{*to_.root},
      removal_{to_.excluded, to_.lists},
      job_ends_{over.io()} {
    top_->name = to_.directory;
    top_->id = to_.id;
    top_->is_absent = to_.is_absent;
}

asio::awaitable<void> receiver::run() {
    std::exception_ptr failed;
    try {
        co_await serve();
    } catch (...) {
        failed = std::current_exception();
        has_failed_ = true;
    }
    // Threads use the slots and files of this object.
    while (jobs_ > 0) co_await job_ends_.wait();
    if (!failed) co_return;
    co_await keep();
    // To remove a large file takes time.
    co_await disk_.run_long([&] {
        files_.clear();
        return 0;
    });
    std::rethrow_exception(failed);
}

// What has arrived of large files waits for a copy that continues.
asio::awaitable<void> receiver::keep() {
    for (auto& [id, f] : files_) {
        if (!f.writes.has_state() || is_spoiled(f, f.error)) continue;
        file& kept = f;
        co_await disk_.run_long([&] {
            // Earlier parts are there even if these are not.
            static_cast<void>(kept.writes.store(kept.written));
            kept.writes.keep();
            return 0;
        });
    }
}

asio::awaitable<void> receiver::serve() {
    rcverbs::remote_region const all = slots_.remote();
    link_.send(slots{
        all.address(),
        all.key().value,
        static_cast<std::uint32_t>(link_.slot_bytes()),
        static_cast<std::uint16_t>(link_.slots())});
    for (;;) {
        co_await link_.wait_for_room();
        link_.set_idle(jobs_ == 0);
        copy_message m = co_await link_.receive();
        bool is_allowed = false;
        has_entries_ |= std::holds_alternative<entry>(m) || std::holds_alternative<batch>(m) ||
                        std::holds_alternative<skipped>(m);
        bool const is_complete = files_.empty() && directories_.empty() && batches_.empty() &&
                                 (has_entries_ || !to_.needs_entries);
        auto const* const a = std::get_if<attribute>(&m);
        if (a != nullptr) is_allowed = on(*a);
        else if (auto* const e = std::get_if<entry>(&m)) is_allowed = co_await on(std::move(*e));
        else if (values_ != nullptr) is_allowed = false;
        else if (auto const* const some = std::get_if<batch>(&m)) is_allowed = on(*some);
        else if (auto const* const b = std::get_if<block>(&m)) is_allowed = on(*b);
        else if (auto const* const h = std::get_if<hole>(&m)) is_allowed = on(*h);
        else if (auto const* const e2 = std::get_if<end>(&m)) is_allowed = on(*e2);
        else if (auto const* const s = std::get_if<skipped>(&m)) is_allowed = on(*s);
        else if (auto const* const t = std::get_if<total>(&m)) is_allowed = on(*t);
        else if (std::holds_alternative<finished>(m) && is_complete) {
            if (result_.lost != not_kept{}) link_.send(result_.lost);
            co_return link_.send(m);
        }
        if (is_allowed) continue;
        link_.close_violated();
        throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
    }
}

attributes receiver::attributes_of(
    entry const& e, std::shared_ptr<extended_attributes const> values
) const {
    attributes a;
    // Programs that run as someone else come only from a peer that may give files to anyone.
    a.mode = e.mode & (to_.keeps_owners ? 07777U : 0777U);
    a.keeps = to_.keeps;
    a.values = std::move(values);
    a.mtime = {static_cast<time_t>(e.seconds), static_cast<long>(e.nanoseconds)};
    if (to_.keeps_owners) a.owned_by = attributes::owner{e.user, e.group};
    return a;
}

bool receiver::on(total const& t) {
    if (result_.total) return false;
    result_.total = result::whole{t.entries, t.bytes};
    return true;
}

// Of the entry that follows.
bool receiver::on(attribute const& a) {
    if (!to_.keeps.has(a.name) || to_.lists) return false;
    if (values_ == nullptr) values_ = std::make_shared<extended_attributes>();
    return values_->add(a);
}

// The sender waits for no answer.
bool receiver::on(skipped const& s) {
    count(is_inside(s.path) ? to_.place_of(s.path) : s.path, why_there("source", s.error));
    return true;
}

void receiver::start_job(asio::awaitable<void> work) {
    ++jobs_;
    asio::co_spawn(link_.io(), std::move(work), [this](std::exception_ptr failed) {
        if (failed) link_.close();
        link_.set_idle(--jobs_ == 0);
        job_ends_.notify();
    });
}

// Several entries in a slot. What is in it is copied before it is looked at: the sender can write there.
bool receiver::on(batch const& b) {
    bool const is_allowed =
        b.slot < is_granted_.size() && is_granted_[b.slot] && b.bytes <= link_.slot_bytes();
    if (!is_allowed) return false;
    is_granted_[b.slot] = false;
    auto const slot = slots_.bytes().subspan(b.slot * link_.slot_bytes(), b.bytes);
    std::vector<std::byte> const bytes{slot.begin(), slot.end()};
    // Nobody knows which entries they were.
    if (hash_of(bytes) != b.checksum) {
        link_.close();
        throw boost::system::system_error{EBADMSG, boost::system::generic_category()};
    }
    arrived a{b.slot, {}};
    for (std::span<std::byte const> rest = bytes; !rest.empty();) {
        auto m = take_first(rest);
        if (!m || a.items.size() == batch_entries_max) return false;
        auto* const e = std::get_if<entry>(&*m);
        auto* const f = std::get_if<whole_file>(&*m);
        bool const is_known =
            (e != nullptr && e->type != entry_type::hard_link &&
             (e->type != entry_type::file || (e->asks && (to_.continues || to_.lists)))) ||
            (f != nullptr && !to_.verifies && !to_.lists);
        if (!is_known) return false;
        if (f != nullptr) add_to(result_.moved, f->what.size);
        bool const is_good = f != nullptr
                                 ? add_to_batch(std::move(f->what), std::move(f->bytes), a.items)
                                 : add_to_batch(std::move(*e), {}, a.items);
        if (!is_good) return false;
    }
    if (!a.items.empty()) result_.current = a.items.back().path();
    start_batch(std::move(a));
    return true;
}

void receiver::start_batch(arrived a) {
    batches_.push_back(std::move(a));
    if (batches_.size() == 1) start_job(do_batches());
}

// One that has no room in a batch, and is not made, or the end of a directory that loses names.
bool receiver::on_alone(entry e, std::shared_ptr<extended_attributes const> values) {
    arrived a;
    bool const is_known = e.type == entry_type::file ? e.asks : e.type != entry_type::hard_link;
    if (!is_known || !add_to_batch(std::move(e), {}, a.items)) return false;
    a.items.front().gets.values = std::move(values);
    start_batch(std::move(a));
    return true;
}

// False if the sender must not do that.
bool receiver::add_to_batch(entry e, std::vector<std::byte> bytes, std::vector<batch_item>& items) {
    auto const directory = directory_of(e);
    if (e.file != next_ || directory == nullptr) return false;
    batch_item i;
    i.gets = attributes_of(e);
    if (e.type == entry_type::directory_end) {
        i.itself = directory;
        i.in = directory->above;
        i.name = directory->name;
        directories_.erase(e.directory);
        names_ -= i.itself->names.size();
    } else {
        i.in = directory;
        i.name = name_of(e);
        note_name(e, *i.in, i.name);
    }
    if (is_reserved(i.name)) i.error = EINVAL;
    if (e.type == entry_type::directory) {
        if (directories_.size() == directories_max) return false;
        i.itself = begin_directory(e, i.in);
    }
    ++next_;
    i.what = std::move(e);
    i.bytes = std::move(bytes);
    items.push_back(std::move(i));
    return true;
}

// One after the other, as later ones may be in directories that earlier ones make.
asio::awaitable<void> receiver::do_batches() {
    while (!batches_.empty()) {
        arrived& a = batches_.front();
        bool is_done = false;
        while (!is_done) {
            batch_options options{to_.replaces, to_.continues, to_.lists};
            if (deletes()) options.removes = &removal_;
            options.sources = sources_;
            is_done = co_await disk_.run([&] {
                if (!around_target_) around_target_ = to_.root->identities_up_from(to_.directory);
                options.around_target = *around_target_;
                return batch_job_.run(a.items, options);
            });
            co_await report_deletions();
        }
        for (batch_item& i : a.items) {
            bool const is_end = i.what.type == entry_type::directory_end;
            bool const is_counted_before = is_end && i.itself->error != 0;
            bool const is_counted_later = i.what.type == entry_type::directory && i.error == 0;
            if (i.is_wanted) {
                link_.send(wanted{i.what.file});
                if (to_.lists) list(i);
                continue;
            }
            bool const is_there = to_.lists && i.error == 0;
            if (is_there || is_counted_before || is_counted_later) {
                link_.send(done{i.what.file, 0});
                continue;
            }
            if (i.error == 0) count_lost(i.what, i.now, i.lost);
            if (i.error == 0 && i.is_file()) add_to(result_.bytes, i.what.size);
            if (i.error == 0 && i.what.asks) {
                add_to(result_.moved, i.what.size);
                add_to(result_.continued, i.what.size);
            }
            report(i.what.file, i.error == 0 ? std::string{} : i.path(), i.error);
        }
        if (a.slot) {
            is_granted_[*a.slot] = true;
            link_.send(credit{*a.slot});
        }
        batches_.pop_front();
        // Of a sender that has left, nothing more is begun.
        if (has_failed_) batches_.clear();
    }
}

// What a directory keeps. The directory of the target itself loses nothing: what is beside the sources stays.
void receiver::note_name(entry const& e, target_directory& in, std::string const& name) {
    bool const is_known =
        !e.is_source() || (e.identity != hash{} && e.type == entry_type::directory);
    if (!to_.deletes || !is_known) return;
    if (names_ == names_max) {
        if (deletes()) report_not_deleted(joined(in.path(), name), error_names_to_keep);
        has_too_many_names_ = true;
        return;
    }
    ++names_;
    if (e.is_source()) sources_.push_back(e.identity);
    else in.names.push_back(hash_of_name(name));
}

// As long as the copy is complete.
bool receiver::deletes() const noexcept {
    return to_.deletes && result_.failed == not_deleted_ && !has_too_many_names_ && !has_failed_;
}

asio::awaitable<void> receiver::report_deletions() {
    std::vector<removal::result> const all = removal_.take_results();
    if (all.empty()) co_return;
    for (removal::result const& each : all) {
        if (each.error != 0) {
            report_not_deleted(each.path, each.error);
            continue;
        }
        ++result_.deleted;
        if (to_.listed_deletion) to_.listed_deletion(each.path);
        if (to_.reports_deletions) link_.send(deleted{0, each.path.substr(0, text_bytes_max)});
    }
    // What is begun is finished, also if the sender has left.
    try {
        co_await link_.wait_for_room();
    } catch (boost::system::system_error const&) {
        has_failed_ = true;
    }
}

// That makes the copy no less complete.
void receiver::report_not_deleted(std::string const& path, int error) {
    ++not_deleted_;
    count(path, not_deleted(why(error)));
    if (to_.reports_deletions) link_.send(deleted{error, path.substr(0, text_bytes_max)});
}

// Of an entry that would be made.
void receiver::list(batch_item const& i) {
    ++result_.entries;
    add_to(result_.bytes, i.what.size);
    if (to_.listed) to_.listed(i.path());
}

// False if the sender must not do that.
asio::awaitable<bool> receiver::on(entry e) {
    std::shared_ptr<extended_attributes const> values = std::exchange(values_, nullptr);
    bool const has_some = e.type == entry_type::file || e.type == entry_type::directory_end;
    if (values != nullptr && (!has_some || !values->is_complete())) co_return false;
    // It may be in a directory that a batch makes.
    while (!batches_.empty()) co_await job_ends_.wait();
    if (to_.lists || (to_.deletes && e.type == entry_type::directory_end))
        co_return on_alone(std::move(e), std::move(values));
    if (e.asks) co_return false;
    bool const is_link = e.type == entry_type::hard_link;
    auto const directory = directory_of(e);
    bool const is_link_inside =
        is_inside(e.target) && is_expected(e.target.substr(0, e.target.find('/')));
    if (e.file != next_ || directory == nullptr || (is_link && !is_link_inside)) co_return false;
    if (e.type == entry_type::file && files_.size() == files_max) co_return false;
    bool const is_end = e.type == entry_type::directory_end;
    if (is_end) directories_.erase(e.directory);
    bool const is_directory = e.type == entry_type::directory;
    if (is_directory && directories_.size() == directories_max) co_return false;
    ++next_;
    extended lost;
    std::string const name = name_of(e);
    std::string const path = is_end ? directory->path() : joined(directory->path(), name);
    target_path const at{path, directory->id};
    if (!is_end) note_name(e, *directory, name);
    // What goes into a directory that could not be made has the same error.
    int error = directory->error;
    if (is_reserved(name) || (is_link && is_reserved(e.target))) error = EINVAL;
    struct stat now {};
    switch (e.type) {
    case entry_type::file: {
        incoming_options const options{
            e.size,
            e.is_sparse,
            to_.replaces,
            to_.verifies,
            to_.continues,
            e.is_source(),
            attributes_of(e).mtime,
            e.identity};
        file f;
        f.what = std::move(e);
        f.path = path;
        f.values = std::move(values);
        if (error == 0)
            f.writes = co_await disk_.run([&] {
                return incoming_file::create(*to_.root, at, options, error);
            });
        std::uint64_t const id = f.what.file;
        f.error = error;
        f.next = f.stored_end = f.writes.begin();
        if (error != 0) {
            link_.send(abort_file{id, error});
        } else if (f.what.size >= resume_bytes_min || to_.continues) {
            link_.send(begin{id, f.next});
            add_to(result_.moved, f.next);
            add_to(result_.continued, f.next);
        }
        files_.emplace(id, std::move(f));
        co_return true;
    }
    case entry_type::directory: {
        file_id made;
        if (error == 0) error = co_await make_directory(e, at, made);
        auto const begun = begin_directory(e, directory);
        begun->error = error;
        if (error == 0) begun->id = made;
        // Counted at its end.
        if (error == 0) {
            link_.send(done{e.file, 0});
            co_return true;
        }
        break;
    }
    case entry_type::directory_end:
        // Was counted when it could not be made.
        if (directory->error != 0) {
            link_.send(done{e.file, 0});
            co_return true;
        }
        if (error == 0)
            error = co_await disk_.run([&] {
                attributes const gets = attributes_of(e, std::move(values));
                return to_.root->set_attributes(path, *directory->id, gets, now, lost);
            });
        if (error == 0) count_lost(e, now, lost);
        break;
    case entry_type::symbolic_link:
        if (error == 0)
            error = co_await disk_.run([&] {
                return to_.root->make_symbolic_link(
                    at, e.target, attributes_of(e), to_.replaces, to_.continues, now
                );
            });
        if (error == 0) count_lost(e, now, {});
        break;
    case entry_type::hard_link:
        if (error == 0) error = co_await make_hard_link(e, at);
        break;
    }
    report(e.file, path, error);
    co_return true;
}

// The one that was asked for.
bool receiver::is_expected(std::string const& source) const {
    return !to_.expected || source == *to_.expected;
}

// What an entry goes into, or ends; none if the sender must not send it.
std::shared_ptr<target_directory> receiver::directory_of(entry const& e) const {
    bool const is_end = e.type == entry_type::directory_end;
    if (e.is_source()) return !is_end && is_expected(e.name) ? top_ : nullptr;
    auto const begun = directories_.find(e.directory);
    if (begun == directories_.end()) return nullptr;
    std::size_t const path_bytes = begun->second->path_bytes + 1 + e.name.size();
    return is_end || path_bytes <= text_bytes_max ? begun->second : nullptr;
}

// At the target.
std::string receiver::name_of(entry const& e) const {
    return e.is_source() && to_.name ? *to_.name : e.name;
}

std::shared_ptr<target_directory> receiver::begin_directory(
    entry const& e, std::shared_ptr<target_directory> const& in
) {
    auto begun = std::make_shared<target_directory>();
    begun->name = name_of(e);
    begun->above = in;
    begun->path_bytes = (e.is_source() ? 0 : in->path_bytes + 1) + e.name.size();
    return directories_[e.file] = std::move(begun);
}

asio::awaitable<int> receiver::make_directory(
    entry const& e, target_path const& at, file_id& made
) {
    co_return co_await disk_.run([&] {
        bool const is_known = e.identity != hash{};
        if (is_known && !around_target_)
            around_target_ = to_.root->identities_up_from(to_.directory);
        if (is_known && std::ranges::count(*around_target_, e.identity) > 0)
            return error_into_itself;
        int const error = to_.root->make_directory(at, made);
        bool const is_source = error == 0 && is_known && identity_of(made) == e.identity;
        return is_source ? error_into_itself : error;
    });
}

// Only to a file of this copy.
asio::awaitable<int> receiver::make_hard_link(entry const& e, target_path const& path) {
    std::string const existing = to_.place_of(e.target);
    auto const found = linkable_.find(existing);
    if (found == linkable_.end())
        co_return has_forgotten_names_ ? error_names_too_many : error_source_changed;
    // The table changes while the disk works.
    file_id const id = found->second;
    co_return co_await disk_.run([&] {
        return to_.root->make_hard_link(path, existing, id, to_.replaces, to_.continues);
    });
}

// The file, if what the sender says comes next.
receiver::file* receiver::file_that_continues(
    std::uint64_t id, std::uint64_t offset, std::uint64_t bytes
) {
    auto const found = files_.find(id);
    if (found == files_.end() || found->second.has_ended) return nullptr;
    file& f = found->second;
    std::uint64_t const size = f.what.size;
    if (offset != f.next || offset > size || bytes > size - offset) return nullptr;
    bool const is_whole = is_aligned(offset) && (is_aligned(bytes) || bytes == size - offset);
    return is_whole ? &f : nullptr;
}

bool receiver::on(block const& b) {
    file* const f = file_that_continues(b.file, b.offset, b.bytes);
    bool const is_allowed = f != nullptr && b.slot < is_granted_.size() && is_granted_[b.slot] &&
                            b.bytes <= link_.slot_bytes();
    if (!is_allowed) return false;
    is_granted_[b.slot] = false;
    f->next = b.offset + b.bytes;
    f->last_is_hole = false;
    f->under_way.push_back({{f->next, b.checksum}, false});
    add_to(result_.moved, b.bytes);
    result_.current = f->path;
    start_job(write(b));
    return true;
}

bool receiver::on(hole const& h) {
    file* const f = file_that_continues(h.file, h.offset, h.bytes);
    // Two in a row are one.
    if (f == nullptr || !f->what.is_sparse || f->last_is_hole) return false;
    f->next = h.offset + h.bytes;
    f->last_is_hole = true;
    f->under_way.push_back({{f->next, {}}, true});
    add_to(result_.moved, h.bytes);
    on_written(h.file, *f);
    return true;
}

asio::awaitable<void> receiver::write(block b) {
    file& f = files_.at(b.file);  // there as long as a block is under way
    std::uint64_t const end_of_block = b.offset + b.bytes;
    std::span<std::byte const> const bytes =
        slots_.bytes().subspan(b.slot * link_.slot_bytes(), b.bytes);
    int error = f.error;
    if (error == 0 && hash_of(bytes) != b.checksum) error = EBADMSG;
    if (error == 0) error = co_await io_.write(f.writes.descriptor_of_data(), b.offset, bytes);
    if (error != 0) fail(b.file, f, error);
    is_granted_[b.slot] = true;
    link_.send(credit{b.slot});
    for (part& p : f.under_way)
        if (p.what.end == end_of_block) p.is_written = true;
    on_written(b.file, f);
}

// What has arrived is right, unless the error says something else.
bool receiver::is_spoiled(file const& f, int error) {
    bool const is_of_disk = error == EBADMSG || error == EUCLEAN || error == EIO || error == EEXIST;
    return error == error_source_changed || (is_of_disk && !f.is_error_of_source);
}

void receiver::fail(std::uint64_t id, file& f, int error) {
    if (f.error != 0) return;
    f.error = error;
    if (!f.has_ended) link_.send(abort_file{id, error});
}

void receiver::on_written(std::uint64_t id, file& f) {
    bool const keeps_parts = f.writes.has_state() || to_.verifies;
    while (!f.under_way.empty() && f.under_way.front().is_written) {
        if (keeps_parts && f.error == 0) f.written.push_back(f.under_way.front().what);
        f.under_way.pop_front();
    }
    constexpr std::size_t parts_most = 16384;
    bool const is_due = f.error == 0 && f.writes.has_state() && !f.is_storing &&
                        !f.written.empty() &&
                        (f.written.back().end - f.stored_end >= incoming_file::checkpoint_bytes ||
                         f.written.size() >= parts_most);
    if (is_due) {
        f.is_storing = true;
        start_job(store(id));
    }
    finish_if_complete(id, f);
}

asio::awaitable<void> receiver::store(std::uint64_t id) {
    file& f = files_.at(id);  // there as long as it is stored
    std::vector<file_part> const parts = std::exchange(f.written, {});
    f.stored_end = parts.back().end;
    int const error = co_await disk_.run_long([&] { return f.writes.store(parts); });
    // A failure of the disk is final.
    if (error != 0) {
        fail(id, f, error);
        f.written.clear();
    }
    f.is_storing = false;
    finish_if_complete(id, f);
}

bool receiver::on(end const& e) {
    auto const found = files_.find(e.file);
    if (found == files_.end() || found->second.has_ended) return false;
    file& f = found->second;
    // All of it, or an error of either side.
    if (e.error == 0 && f.error == 0 && f.next != f.what.size) return false;
    f.has_ended = true;
    if (e.error != 0 && f.error == 0) {
        f.error = e.error;
        f.is_error_of_source = true;
    }
    finish_if_complete(e.file, f);
    return true;
}

void receiver::finish_if_complete(std::uint64_t id, file& f) {
    if (!f.has_ended || !f.under_way.empty() || f.is_storing) return;
    f.is_storing = true;
    start_job(finish(id));
}

asio::awaitable<void> receiver::finish(std::uint64_t number) {
    file& f = files_.at(number);
    file_id id;
    struct stat now {};
    extended lost;
    auto finish_on_disk = [&] {
        int const failed =
            f.error != 0 ? f.error : f.writes.finish(attributes_of(f.what, f.values), f.written);
        id = f.writes.id();
        now = f.writes.status();
        lost = f.writes.lost();
        if (failed != 0 && !is_spoiled(f, failed)) {
            static_cast<void>(f.writes.store(f.written));
            f.writes.keep();
        }
        // Unlinks it if it has no other name, and does not stay.
        f.writes = {};
        return failed;
    };
    int const error = f.what.size >= resume_bytes_min ? co_await disk_.run_long(finish_on_disk)
                                                      : co_await disk_.run(finish_on_disk);
    if (error == 0) add_to(result_.bytes, f.what.size);
    if (error == 0) count_lost(f.what, now, lost);
    std::string const path = std::move(f.path);
    if (error == 0 && f.what.has_names) {
        std::size_t const bytes = path.size() + linkable_bytes_besides;
        if (linkable_bytes_ + bytes > linkable_bytes_max) {
            has_forgotten_names_ = true;
        } else {
            linkable_bytes_ += bytes;
            linkable_[path] = id;
        }
    }
    bool const is_of_source = f.is_error_of_source;
    files_.erase(number);
    if (is_of_source) {
        count(path, why_there("source", error));
        link_.send(done{number, error});
    } else {
        report(number, path, error);
    }
}

void receiver::report(std::uint64_t id, std::string const& path, int error) {
    if (error == 0) ++result_.entries;
    else count(path, why(error));
    link_.send(done{id, error});
}

// Of an entry that is finished.
void receiver::count_lost(entry const& e, struct stat const& now, extended const& not_set) {
    constexpr unsigned special = S_ISUID | S_ISGID | S_ISVTX;
    not_kept& lost = result_.lost;
    if ((e.mode & special & ~now.st_mode) != 0) ++lost.special_modes;
    if (e.user != now.st_uid || e.group != now.st_gid) ++lost.owners;
    if (e.has_attributes || not_set.attributes) ++lost.attributes;
    if (e.has_acl || not_set.acl) ++lost.acls;
}

void receiver::count(std::string const& path, std::string const& why) {
    ++result_.failed;
    report_(path, why);
}

}  // namespace copy
