// Package client is what a tool imports to ask a mesh: a connection ([Dial]) and
// commands ([Ask]). It brings neither a broker nor the server with it.
package client
