// Package anchor is how clients of a mesh know its server.
//
// It guarantees that a connection made with its configurations is TLS 1.3 with
// a server whose certificate is for the name that was dialled and by the CA of
// the mesh: the one in a file, or, for who has only a token, the one whose
// fingerprint is in the token. The system's own CAs are never asked.
//
// It does not say who the client is: that is the nkey's business.
package anchor
