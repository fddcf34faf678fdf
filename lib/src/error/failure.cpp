#include <rcverbs/failure.hpp>

#include <rcverbs/close_reason.hpp>

namespace rcverbs {

char const* to_string(step s) noexcept {
    switch (s) {
    case step::open: return "open";
    case step::listen: return "listen";
    case step::resolve_address: return "resolve address";
    case step::resolve_route: return "resolve route";
    case step::create_queue_pair: return "create queue pair";
    case step::connect: return "connect";
    case step::accept: return "accept";
    case step::handshake: return "handshake";
    case step::exchange: return "exchange";
    case step::transfer: return "transfer";
    case step::finish: return "finish";
    case step::disconnect: return "disconnect";
    case step::drain: return "drain";
    }
    return "unknown step";
}

char const* to_string(close_reason reason) noexcept {
    switch (reason) {
    case close_reason::open: return "open";
    case close_reason::completed: return "completed";
    case close_reason::closed_locally: return "closed locally";
    case close_reason::peer_disconnected: return "peer disconnected";
    case close_reason::peer_closed_early: return "peer closed early";
    case close_reason::transport_error: return "transport error";
    case close_reason::timed_out: return "timed out";
    case close_reason::refused: return "refused";
    case close_reason::protocol_error: return "protocol error";
    }
    return "unknown reason";
}

std::string failure::message() const {
    std::string text = to_string(where);
    text += ' ';
    text += address.to_string();
    text += ": ";
    text += code.message();
    text += " [";
    text += code.category().name();
    text += ' ';
    text += std::to_string(code.value());
    if (status != 0) text += ", status " + std::to_string(status);
    text += ']';
    return text;
}

}  // namespace rcverbs
