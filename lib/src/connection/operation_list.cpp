#include "connection/operation_list.hpp"

namespace rcverbs::detail {

bool operation_list::remove(operation& op) noexcept {
    operation* before = nullptr;
    operation* at = first_;
    while (at != nullptr && at != &op) {
        before = at;
        at = at->next;
    }
    if (at == nullptr) return false;
    (before != nullptr ? before->next : first_) = op.next;
    if (last_ == &op) last_ = before;
    op.next = nullptr;
    return true;
}

operation_list operation_list::split_from(operation& op) noexcept {
    operation_list before;
    while (first_ != &op) before.push_back(*pop_front());
    return std::exchange(*this, before);
}

std::unique_ptr<operation> refused_operation(
    boost::asio::any_io_executor const& io, handler_source const& source, error_code why
) {
    auto op = std::make_unique<operation>();
    source.actions->place(source.handler, *op, io);
    op->code = why;
    if (op->host == nullptr) return op;
    // The destructor posts to its executor.
    outgoing_parcels outgoing;
    op->complete(outgoing);
    return nullptr;
}

void complete_refused(operation& op) {
    outgoing_parcels outgoing;
    op.complete(outgoing);
    outgoing.send();
}

}  // namespace rcverbs::detail
